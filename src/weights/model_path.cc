#include "weights/model_path.h"

#include <cerrno>
#include <cstring>
#include <filesystem>

#include <spawn.h>
#include <sys/wait.h>

#include "base/env.h"
#include "base/file.h"

extern char** environ;

namespace deepinfer::weights {
namespace {

namespace fs = std::filesystem;

// The one published checkpoint whose size is known without asking.
constexpr const char* kReleasedName = "deepseek-ai/DeepSeek-V4.1-Flash";
constexpr int64_t kReleasedBytes = 510'286'023'000;

bool is_hub_name(const std::string& name) {
  const auto slash = name.find('/');
  if (slash == 0 || slash == std::string::npos || slash + 1 == name.size() ||
      name.find('/', slash + 1) != std::string::npos)
    return false;
  if (name.front() == '.' || name[slash + 1] == '.') return false;
  for (char c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c)) && std::strchr("-_./", c) == nullptr) return false;
  }
  return true;
}

std::string cache_directory() {
  if (auto dir = env("HF_HUB_CACHE")) return *dir;
  if (auto home = env("HF_HOME")) return *home + "/hub";
  return env("HOME").value_or("") + "/.cache/huggingface/hub";
}

// The snapshot of refs/main, or the newest one that has a config.json; empty if there is none.
std::string find_snapshot(const std::string& cache, std::string name) {
  name.replace(name.find('/'), 1, "--");
  const std::string root = cache + "/models--" + name;
  if (auto ref = read_file(root + "/refs/main")) {
    const std::string revision = ref->substr(0, ref->find_first_of(" \r\n"));
    const std::string path = root + "/snapshots/" + revision;
    if (!revision.empty() && file_exists(path + "/config.json")) return path;
  }
  std::string newest;
  fs::file_time_type newest_time;
  std::error_code ec;
  for (const auto& entry : fs::directory_iterator(root + "/snapshots", ec)) {
    if (!file_exists(entry.path() / "config.json")) continue;
    const auto time = fs::last_write_time(entry.path(), ec);
    if (!newest.empty() && time <= newest_time) continue;
    newest = entry.path();
    newest_time = time;
  }
  return newest;
}

// Free bytes where `path` is or would be created.
int64_t free_bytes(fs::path path) {
  std::error_code ec;
  while (!fs::exists(path, ec) && path.has_parent_path() && path != path.parent_path()) path = path.parent_path();
  const auto space = fs::space(path, ec);
  return ec ? 0 : static_cast<int64_t>(space.available);
}

std::string gigabytes(int64_t bytes) {
  return fmt::format("{:.0f} GB", static_cast<double>(bytes) / 1e9);
}

Result<void> run_download(const std::string& name) {
  std::string program = "hf", verb = "download", argument = name;
  char* const arguments[] = {program.data(), verb.data(), argument.data(), nullptr};
  pid_t child = 0;
  if (int error = ::posix_spawnp(&child, program.c_str(), nullptr, nullptr, arguments, environ); error != 0) {
    return fail(Code::kNotFound, "cannot run 'hf download {}': {}; it comes with the Python package huggingface_hub",
                name, std::strerror(error));
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (status != 0) return fail(Code::kIo, "'hf download {}' failed; run the command again to resume", name);
  return {};
}

}  // namespace

Result<std::string> resolve_model(const std::string& name) {
  std::error_code ec;
  if (fs::is_directory(name, ec)) return name;
  if (!is_hub_name(name)) return fail(Code::kNotFound, "{}: no such directory, and not a hub name (owner/name)", name);
  const std::string cache = cache_directory();
  if (std::string path = find_snapshot(cache, name); !path.empty()) return path;
  const std::string size = name == kReleasedName ? gigabytes(kReleasedBytes) : "an unknown amount";
  return fail(Code::kNotFound,
              "model {} is neither a directory nor in {}: it needs {} of disk, {} are free there; download it with: hf "
              "download {}",
              name, cache, size, gigabytes(free_bytes(cache)), name);
}

Result<std::string> resolve_or_download_model(const std::string& name) {
  auto found = resolve_model(name);
  if (found || !is_hub_name(name)) return found;
  DI_TRY_VOID(run_download(name));
  return resolve_model(name);
}

}  // namespace deepinfer::weights
