// Makes an exception in an actor end the process; the exception appears on standard error, where
// the agent finds it. CAF would end that actor alone and leave a half-alive process for which
// everybody waits. An exception here means that memory was refused, or a bug.
#pragma once

#include <exception>

#include "caf/error.hpp"

namespace megascale::actors {

template <typename ActorPointer>
void EndProcessOnException(ActorPointer self) {
  self->set_exception_handler([](std::exception_ptr&) -> caf::error { std::terminate(); });
}

}  // namespace megascale::actors
