// Where a model is: a directory, or a hub name ("owner/name") found in the Hugging Face cache.
//
//   cache    $HF_HUB_CACHE, else $HF_HOME/hub, else ~/.cache/huggingface/hub
//   layout   models--owner--name/{refs/main, snapshots/<revision>/config.json}
#pragma once

#include <string>

#include "base/result.h"

namespace deepinfer::weights {

// The directory with config.json. kNotFound: for a hub name the message gives the size if known, the free disk and the
// download command.
Result<std::string> resolve_model(const std::string& name);

// The same, but downloads a hub name that is absent (resumable; progress goes to the terminal).
Result<std::string> resolve_or_download_model(const std::string& name);

}  // namespace deepinfer::weights
