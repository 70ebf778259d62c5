// Links the generated header files together with the library and checks that header and library agree on the version.
#include <takt/version.h>

#include <cstring>

int main() { return std::strcmp(takt::version(), TAKT_VERSION_STRING) == 0 ? 0 : 1; }
