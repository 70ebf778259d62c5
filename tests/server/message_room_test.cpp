// What messages that are still coming may hold together.
#include "server/message_room.h"

#include "catch.h"

using takt::server::MessageRoom;

TEST_CASE("messages share what is over the free part of each") {
    constexpr std::size_t free = MessageRoom::kFreeBytes;
    MessageRoom room(100, 1000);
    MessageRoom::Share first(room), second(room);
    CHECK(first.grow_to(free));
    CHECK(first.grow_to(free + 600));
    CHECK(first.grow_to(free + 700));
    CHECK(second.grow_to(free + 300));
    CHECK_FALSE(second.grow_to(free + 301));
    CHECK_FALSE(first.grow_to(free + 701));
    {
        MessageRoom::Share third(room);
        CHECK(third.grow_to(free));
        CHECK_FALSE(third.grow_to(free + 1));
    }
    CHECK(first.grow_to(free + 700));   // a refused growth took nothing
    CHECK_FALSE(second.grow_to(free + 301));
}

TEST_CASE("what a message held is there again after it, and one of the greatest length has room alone") {
    MessageRoom room(5000, 1000);
    for (int i = 0; i < 3; ++i) {
        MessageRoom::Share share(room);
        CHECK(share.grow_to(MessageRoom::kFreeBytes + 5000));
        CHECK_FALSE(share.grow_to(MessageRoom::kFreeBytes + 5001));
    }
}
