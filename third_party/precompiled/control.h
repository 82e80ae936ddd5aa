// As runtime.h, and what the control plane's sources include: gRPC and our own messages.
#pragma once

#include <grpcpp/grpcpp.h>

#include "proto/agent.grpc.pb.h"
#include "proto/control.grpc.pb.h"
#include "proto/driver_log.pb.h"
#include "proto/link.pb.h"
#include "third_party/precompiled/runtime.h"
