// Each subcommand lives in a file of its own, cmd_<name>.cc, and is listed in main.cc.
//
// add_<name> declares the options on `app` and sets a callback that stores the process exit code in `exit_code`:
// 0 done, 1 internal failure, 2 something the user can fix (one sentence on stderr).
#pragma once

namespace CLI {
class App;
}

namespace deepinfer {
struct Error;

// Prints the error's sentence to stderr and returns its exit code.
int report(const Error& error);

}  // namespace deepinfer
