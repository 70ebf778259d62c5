// The compiled part of Boost.Beast, once for the program (BOOST_BEAST_SEPARATE_COMPILATION). Nothing of takt here.
#include <boost/beast/src.hpp>
