#include "controlplane/driver/listen/reflection.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <grpcpp/grpcpp.h>

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "proto/reflection.grpc.pb.h"

namespace megascale::driver {
namespace {

namespace reflection = grpc::reflection::v1;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using Request = reflection::ServerReflectionRequest;
using Response = reflection::ServerReflectionResponse;

const DescriptorPool& Pool() { return *DescriptorPool::generated_pool(); }

// Adds `file`, and before it every file that it imports.
void AddFile(const FileDescriptor& file, std::set<const FileDescriptor*>* added,
             reflection::FileDescriptorResponse* response) {
  if (!added->insert(&file).second) return;
  for (int i = 0; i < file.dependency_count(); ++i) {
    AddFile(*file.dependency(i), added, response);
  }
  google::protobuf::FileDescriptorProto proto;
  file.CopyTo(&proto);
  response->add_file_descriptor_proto(proto.SerializeAsString());
}

void SetError(grpc::StatusCode code, std::string message, Response* response) {
  response->mutable_error_response()->set_error_code(code);
  response->mutable_error_response()->set_error_message(std::move(message));
}

// `file` null: there is none. `what` names what was asked for.
void SetFile(const FileDescriptor* file, absl::string_view what, Response* response) {
  if (file == nullptr) {
    SetError(grpc::NOT_FOUND, absl::StrCat(what, ": not found"), response);
    return;
  }
  std::set<const FileDescriptor*> added;
  AddFile(*file, &added, response->mutable_file_descriptor_response());
}

const FileDescriptor* FileOfExtension(const reflection::ExtensionRequest& request) {
  const auto* type = Pool().FindMessageTypeByName(request.containing_type());
  if (type == nullptr) return nullptr;
  const auto* extension = Pool().FindExtensionByNumber(type, request.extension_number());
  return extension == nullptr ? nullptr : extension->file();
}

void SetExtensions(const std::string& name, Response* response) {
  const auto* type = Pool().FindMessageTypeByName(name);
  if (type == nullptr) {
    SetError(grpc::NOT_FOUND, absl::StrCat(name, ": not found"), response);
    return;
  }
  auto* numbers = response->mutable_all_extension_numbers_response();
  numbers->set_base_type_name(name);
  std::vector<const FieldDescriptor*> extensions;
  Pool().FindAllExtensions(type, &extensions);
  for (const FieldDescriptor* extension : extensions) {
    numbers->add_extension_number(extension->number());
  }
}

Response Answer(const Request& request, const std::vector<std::string>& services) {
  Response response;
  response.set_valid_host(request.host());
  *response.mutable_original_request() = request;
  switch (request.message_request_case()) {
    case Request::kFileByFilename:
      SetFile(Pool().FindFileByName(request.file_by_filename()), request.file_by_filename(),
              &response);
      break;
    case Request::kFileContainingSymbol:
      SetFile(Pool().FindFileContainingSymbol(request.file_containing_symbol()),
              request.file_containing_symbol(), &response);
      break;
    case Request::kFileContainingExtension:
      SetFile(FileOfExtension(request.file_containing_extension()),
              request.file_containing_extension().containing_type(), &response);
      break;
    case Request::kAllExtensionNumbersOfType:
      SetExtensions(request.all_extension_numbers_of_type(), &response);
      break;
    case Request::kListServices:
      for (const std::string& service : services) {
        response.mutable_list_services_response()->add_service()->set_name(service);
      }
      break;
    default:
      SetError(grpc::INVALID_ARGUMENT, "expected one of the fields of message_request", &response);
  }
  return response;
}

// One stream: reads a request and writes its answer in turn. Deletes itself at the stream's end.
class Stream : public grpc::ServerBidiReactor<Request, Response> {
 public:
  explicit Stream(const std::vector<std::string>& services) : services_(services) {
    StartRead(&request_);
  }
  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    response_ = Answer(request_, services_);
    StartWrite(&response_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    StartRead(&request_);
  }
  void OnDone() override { delete this; }

 private:
  const std::vector<std::string>& services_;
  Request request_;
  Response response_;
};

class Reflection : public reflection::ServerReflection::CallbackService {
 public:
  explicit Reflection(std::vector<std::string> services) : services_(std::move(services)) {}
  grpc::ServerBidiReactor<Request, Response>* ServerReflectionInfo(
      grpc::CallbackServerContext* /*context*/) override {
    return new Stream(services_);
  }

 private:
  const std::vector<std::string> services_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeReflection(std::vector<std::string> services) {
  return std::make_unique<Reflection>(std::move(services));
}

}  // namespace megascale::driver
