// main() of every Catch2 version 2 test program, compiled once: it takes far longer than a test file.
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
