// The version string of the library as it was built. Any thread.
#include <takt/version.h>

namespace takt {

const char* version() noexcept { return TAKT_VERSION_STRING; }

}  // namespace takt
