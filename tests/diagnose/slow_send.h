// A send path that sleeps at random: in a program that links this library, a thread that sends to
// another machine sleeps between the pieces of what it sends, after SlowSend. The other ranks of
// the machine send as fast as ever, and what stays within the machine is not touched.
// Source: Mycroft (SOSP 2025), section 7: a sleep in the progress of a send.
#pragma once

#include <cstdint>
#include <string>

namespace megascale::injection {

// From now on, while the folder has the file "send-RANK" with two numbers, each piece that this
// process sends to another machine is late by that many seconds with that probability. Call it
// once. Threads: any.
void SlowSend(const std::string& folder, int local_rank);

// Returns how many pieces were late so far. Threads: any.
int64_t NumLatePieces();

}  // namespace megascale::injection
