// The compiled parts of Boost.Beast and of Asio over OpenSSL, once for the program. Nothing of takt here.
#include <boost/asio/ssl/impl/src.hpp>
#include <boost/beast/src.hpp>
