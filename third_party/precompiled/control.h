// As runtime.h, and the messages of the control plane. Stubs of gRPC are left out: the compiler
// would instantiate their templates in every source, which takes a second each (README.md).
#pragma once

#include "proto/agent.pb.h"
#include "proto/control.pb.h"
#include "proto/driver_log.pb.h"
#include "proto/link.pb.h"
#include "third_party/precompiled/runtime.h"
