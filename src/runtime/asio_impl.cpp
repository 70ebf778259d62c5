// The compiled part of Boost.Asio, once for the whole library (BOOST_ASIO_SEPARATE_COMPILATION). Nothing of takt here.
#include <boost/asio/impl/src.hpp>
