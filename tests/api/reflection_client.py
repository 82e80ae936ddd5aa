"""A gRPC client that knows nothing of the server but its address: what it calls it learns by server reflection.

    client = ReflectionClient(grpc.insecure_channel("unix:/run/user/0/megascale/driver.sock"))
    client.services()                                             # ["megascale.control.v1.JobService", …]
    client.call("megascale.control.v1.JobService/GetJob", {"job_id": "x"})       # a dictionary, as JSON has it
    for message in client.stream("megascale.control.v1.JobService/WatchJob", …)  # one dictionary a message

Needs python3-grpcio and python3-protobuf; no generated code. Fails with grpc.RpcError.
"""

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

_REFLECTION = "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
DEADLINE_S = 10


def _reflection_protocol():
    """The few fields of grpc/reflection/v1alpha/reflection.proto that are used, with their numbers."""
    file = descriptor_pb2.FileDescriptorProto(
        name="reflection.proto", package="grpc.reflection.v1alpha", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto

    def message(name, *fields):
        described = file.message_type.add(name=name)
        for field, number, kind, repeated, type_name in fields:
            described.field.add(
                name=field, number=number, type=kind, type_name=type_name,
                label=kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL)

    package = ".grpc.reflection.v1alpha."
    message("ServerReflectionRequest",
            ("file_by_filename", 3, kinds.TYPE_STRING, False, None),
            ("file_containing_symbol", 4, kinds.TYPE_STRING, False, None),
            ("list_services", 7, kinds.TYPE_STRING, False, None))
    message("FileDescriptorResponse", ("file_descriptor_proto", 1, kinds.TYPE_BYTES, True, None))
    message("ServiceResponse", ("name", 1, kinds.TYPE_STRING, False, None))
    message("ListServiceResponse",
            ("service", 1, kinds.TYPE_MESSAGE, True, package + "ServiceResponse"))
    message("ServerReflectionResponse",
            ("file_descriptor_response", 4, kinds.TYPE_MESSAGE, False, package + "FileDescriptorResponse"),
            ("list_services_response", 6, kinds.TYPE_MESSAGE, False, package + "ListServiceResponse"))
    return file


def _message_class(pool, name):
    return message_factory.MessageFactory(pool).GetPrototype(pool.FindMessageTypeByName(name))


class ReflectionClient:
    """Threads: one; a stream may be read while calls are made."""

    def __init__(self, channel):
        self._channel = channel
        self._pool = descriptor_pool.DescriptorPool()
        self._files = set()
        protocol = descriptor_pool.DescriptorPool()
        protocol.Add(_reflection_protocol())
        self._question = _message_class(protocol, "grpc.reflection.v1alpha.ServerReflectionRequest")
        self._answer = _message_class(protocol, "grpc.reflection.v1alpha.ServerReflectionResponse")

    def services(self):
        answer = self._ask(list_services="*")
        return sorted(service.name for service in answer.list_services_response.service)

    def methods(self, service):
        """Returns the methods of a service: name -> descriptor."""
        return dict(self._service(service).methods_by_name)

    def call(self, method, request, timeout=DEADLINE_S):
        described = self._method(method)
        stub = self._channel.unary_unary(
            "/" + method, request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=self._class_of(described.output_type).FromString)
        return self._to_json(stub(self._from_json(described, request), timeout=timeout))

    def stream(self, method, request, timeout=None):
        described = self._method(method)
        stub = self._channel.unary_stream(
            "/" + method, request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=self._class_of(described.output_type).FromString)
        for message in stub(self._from_json(described, request), timeout=timeout):
            yield self._to_json(message)

    def _ask(self, **question):
        stub = self._channel.stream_stream(
            "/" + _REFLECTION, request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=self._answer.FromString)
        return next(iter(stub(iter([self._question(**question)]), timeout=DEADLINE_S)))

    def _learn(self, answer):
        """Adds files to the pool, each after the files that it imports."""
        for serialized in answer.file_descriptor_response.file_descriptor_proto:
            file = descriptor_pb2.FileDescriptorProto.FromString(serialized)
            if file.name in self._files:
                continue
            self._files.add(file.name)
            for imported in file.dependency:
                if imported not in self._files:
                    self._learn(self._ask(file_by_filename=imported))
            self._pool.Add(file)

    def _service(self, service):
        try:
            return self._pool.FindServiceByName(service)
        except KeyError:
            self._learn(self._ask(file_containing_symbol=service))
            return self._pool.FindServiceByName(service)

    def _method(self, path):
        service, name = path.split("/")
        return self._service(service).methods_by_name[name]

    def _class_of(self, descriptor):
        return message_factory.MessageFactory(self._pool).GetPrototype(descriptor)

    def _from_json(self, described, request):
        return json_format.ParseDict(request, self._class_of(described.input_type)(), descriptor_pool=self._pool)

    def _to_json(self, message):
        return json_format.MessageToDict(message, descriptor_pool=self._pool)
