// The one way to Catch2 for every test: version 2 (Debian 12) and version 3 (Ubuntu 24.04) behind one include.
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
#else
#include <catch2/catch.hpp>
#endif
