// How processes run actors: on threads that sleep while there is nothing to do, and so that the
// first exception ends the process.
#pragma once

#include <cstddef>
#include <exception>

#include "caf/actor_system_config.hpp"
#include "caf/atom.hpp"
#include "caf/error.hpp"

namespace megascale::actors {

// Lets the actors that are not detached share this many threads. A thread that has no message
// sleeps until one comes; by CAF's default, each thread would poll for messages 10,000 times a
// second for a while after every message, so all the time while a job trains.
inline void SetThreads(size_t num_threads, caf::actor_system_config* config) {
  config->set("scheduler.policy", caf::atom("sharing"));
  config->set("scheduler.max-threads", num_threads);
}

// Makes an exception in an actor end the process; the exception appears on standard error, where
// the agent finds it. CAF would end only that actor and leave a process that still runs but does
// not do its part, so that all others wait for it. An exception here means that memory was refused,
// or a bug.
template <typename ActorPointer>
void EndProcessOnException(ActorPointer self) {
  self->set_exception_handler([](std::exception_ptr&) -> caf::error { std::terminate(); });
}

}  // namespace megascale::actors
