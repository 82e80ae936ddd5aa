// Says which memory a stray access hit. Emulated devices give out addresses that the host cannot
// touch; the fault there ends the process, after a line with the memory's name.
//
// Threads: any.
#pragma once

#include <cstddef>

namespace megascale::device {

// What the line says of an access by the host: "host code touched device memory: byte 12 of 'x'".
inline constexpr char kHostTouched[] = "host code touched device memory";

// Names [begin, begin + bytes) until UnnameMemory(begin). `name` and `what` stay where they are
// until then. The first call installs the handler of SIGSEGV. Some thousands of ranges have room;
// faults in others are not named.
void NameMemory(const std::byte* begin, size_t bytes, const char* name,
                const char* what = kHostTouched);
void UnnameMemory(const std::byte* begin);

}  // namespace megascale::device
