// What the driver's page reads. It makes the same calls as the JobService, in the threads of the
// web server. Threads: any.
#pragma once

#include <memory>

#include "controlplane/page/page_source.h"

namespace megascale::driver {

class AgentStreams;
class DriverLoop;

// `loop` and `agents` outlive the source.
std::unique_ptr<page::PageSource> MakePageSource(DriverLoop* loop, AgentStreams* agents);

}  // namespace megascale::driver
