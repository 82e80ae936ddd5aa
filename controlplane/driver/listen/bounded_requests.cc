#include "controlplane/driver/listen/bounded_requests.h"

#include <grpc/byte_buffer.h>
#include <grpcpp/impl/rpc_service_method.h>
#include <grpcpp/impl/service_type.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/listen/message_budget.h"
#include "controlplane/driver/listen/server_limits.h"
#include "runtime/base/check.h"

namespace megascale::driver {
namespace {

using grpc::internal::MethodHandler;
using grpc::internal::RpcMethod;
using grpc::internal::RpcServiceMethod;

// What Deserialize hands to RunHandler.
struct HeldRequest {
  HeldRequest(MessageBudget* budget, size_t bytes) : share(budget, bytes) {}

  const MessageBudget::Share share;
  void* request = nullptr;  // of the generated handler
};

// Stands before the handler that gRPC's generator made for a method.
class BoundedHandler final : public MethodHandler {
 public:
  BoundedHandler(MethodHandler* handler, MessageBudget* budget, size_t bytes_max)
      : handler_(*handler), budget_(*budget), bytes_max_(bytes_max) {}

  void* Deserialize(grpc_call* call, grpc_byte_buffer* bytes, grpc::Status* status,
                    void** handler_data) override {
    const size_t num_bytes = bytes == nullptr ? 0 : grpc_byte_buffer_length(bytes);
    if (num_bytes > bytes_max_) {
      return Refuse(
          bytes, status,
          absl::StrCat("the request has ", num_bytes, " bytes; expected at most ", bytes_max_));
    }
    auto held = std::make_unique<HeldRequest>(&budget_, num_bytes);
    if (!held->share.granted()) {
      return Refuse(bytes, status,
                    "other calls work on large requests, which leave no room for this one; try "
                    "again");
    }
    held->request = handler_.Deserialize(call, bytes, status, handler_data);
    return held->request == nullptr ? nullptr : held.release();
  }

  void RunHandler(const HandlerParameter& parameter) override {
    const std::unique_ptr<HeldRequest> held(static_cast<HeldRequest*>(parameter.request));
    handler_.RunHandler(HandlerParameter(
        parameter.call, parameter.server_context, held == nullptr ? nullptr : held->request,
        parameter.status, parameter.internal_data, parameter.call_requester));
  }

 private:
  static void* Refuse(grpc_byte_buffer* bytes, grpc::Status* status, const std::string& why) {
    grpc_byte_buffer_destroy(bytes);
    *status = grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, why);
    return nullptr;
  }

  MethodHandler& handler_;
  MessageBudget& budget_;
  const size_t bytes_max_;
};

// Reaches the handlers of another service, which only a derived class may ask for.
class HandlersOf final : public grpc::Service {
 public:
  static MethodHandler* At(grpc::Service* service, int index) {
    return (service->*(&HandlersOf::GetHandler))(index);
  }
};

class BoundedService final : public grpc::Service {
 public:
  BoundedService(std::unique_ptr<grpc::Service> service,
                 const google::protobuf::ServiceDescriptor& descriptor, const RequestLimits& limits)
      : service_(std::move(service)), budget_(limits.bytes_of_all_max) {
    // The generator keeps the order of methods.
    names_.reserve(descriptor.method_count());  // gRPC keeps pointers to the names
    for (int i = 0; i < descriptor.method_count(); ++i) {
      const google::protobuf::MethodDescriptor& method = *descriptor.method(i);
      MEGASCALE_CHECK(!method.client_streaming());
      names_.push_back(absl::StrCat("/", descriptor.full_name(), "/", method.name()));
      const bool is_large = limits.large_methods.count(method.name()) != 0;
      auto handler =
          std::make_unique<BoundedHandler>(HandlersOf::At(service_.get(), i), &budget_,
                                           is_large ? size_t{kReceivedBytesMax} : limits.bytes_max);
      AddMethod(new RpcServiceMethod(
          names_.back().c_str(),
          method.server_streaming() ? RpcMethod::SERVER_STREAMING : RpcMethod::NORMAL_RPC,
          handler.release()));
    }
  }

 private:
  const std::unique_ptr<grpc::Service> service_;  // its handlers do the work
  MessageBudget budget_;
  std::vector<std::string> names_;
};

}  // namespace

std::unique_ptr<grpc::Service> BoundRequests(std::unique_ptr<grpc::Service> service,
                                             const google::protobuf::ServiceDescriptor& descriptor,
                                             const RequestLimits& limits) {
  return std::make_unique<BoundedService>(std::move(service), descriptor, limits);
}

}  // namespace megascale::driver
