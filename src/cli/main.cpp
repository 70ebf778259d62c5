// Entry of the program `takt`: reads the command line and hands over to one file a command.
#include <takt/version.h>

#include <cstdio>
#include <string_view>

int main(int argc, char** argv) {
    if (argc == 2 && std::string_view(argv[1]) == "--version") {
        std::printf("takt %s\n", takt::version());
        return 0;
    }
    std::fputs("usage: takt --version\n", stderr);
    return 2;
}
