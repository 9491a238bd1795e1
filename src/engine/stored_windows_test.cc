// Stored windows on the CPU.
#include "engine/stored_windows.h"

namespace deepinfer::engine::stored_windows {

INSTANTIATE_TEST_SUITE_P(Truncations, StoredWindows, sides_of("cpu"), name_of);

}  // namespace deepinfer::engine::stored_windows
