#include "tests/fuzz/mutator.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"

namespace megascale::fuzz {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr size_t kPieceMax = 64;
constexpr int kDepthMax = 8;

void InsertPiece(std::string* input, const std::string& piece, Random* random) {
  input->insert(random->Below(input->size() + 1), piece);
}

std::string RandomPiece(const std::string& text, Random* random) {
  const size_t begin = random->Below(text.size());
  return text.substr(begin, 1 + random->Below(kPieceMax));
}

void OverwriteNumber(std::string* input, Random* random) {
  const int64_t number = InterestingNumber(random);
  const size_t width = size_t{1} << random->Below(4);
  if (input->size() < width) return;
  std::memcpy(input->data() + random->Below(input->size() - width + 1), &number, width);
}

// Replaces the digits of a number in a text by another number.
void ReplaceDigits(std::string* input, Random* random) {
  const size_t begin = input->find_first_of("0123456789", random->Below(input->size()));
  if (begin == std::string::npos) return;
  const size_t end = input->find_first_not_of("0123456789", begin);
  input->replace(begin, (end == std::string::npos ? input->size() : end) - begin,
                 absl::StrCat(InterestingNumber(random)));
}

void MutateOnce(std::string* input, const ByteMutation& mutation, Random* random) {
  const size_t at = random->Below(input->size());
  switch (random->Below(input->empty() ? 2 : 11)) {
    case 0:
      InsertPiece(input, std::string(1 + random->Below(4), static_cast<char>(random->Next())),
                  random);
      return;
    case 1:
      if (mutation.dictionary->empty()) return;
      InsertPiece(input, (*mutation.dictionary)[random->Below(mutation.dictionary->size())],
                  random);
      return;
    case 2:
      (*input)[at] = static_cast<char>((*input)[at] ^ (1 << random->Below(8)));
      return;
    case 3:
      (*input)[at] = static_cast<char>(random->Next());
      return;
    case 4:
      input->erase(at, 1 + random->Below(kPieceMax));
      return;
    case 5:
      InsertPiece(input, RandomPiece(*input, random), random);
      return;
    case 6:
      OverwriteNumber(input, random);
      return;
    case 7:
      input->resize(at);
      return;
    case 8:  // much of one thing
      input->insert(at, std::string(1 + random->Below(2000), (*input)[at]));
      return;
    case 9:
      ReplaceDigits(input, random);
      return;
    default:
      if (mutation.other->empty()) return;
      *input = input->substr(0, at) + mutation.other->substr(random->Below(mutation.other->size()));
  }
}

double InterestingDouble(Random* random) {
  constexpr double kValues[] = {0.0,
                                -0.0,
                                1.0,
                                -1.0,
                                0.5,
                                1e-310,
                                1e308,
                                -1e308,
                                std::numeric_limits<double>::infinity(),
                                -std::numeric_limits<double>::infinity()};
  const size_t index = random->Below(std::size(kValues) + 1);
  return index < std::size(kValues) ? kValues[index] : std::nan("");
}

std::string InterestingText(const std::string& now, Random* random) {
  switch (random->Below(5)) {
    case 0:
      return "";
    case 1:
      return "../" + now;
    case 2:
      return std::string(5000, 'x');
    case 3:
      return now + std::string("\0\x1b[2J\n", 6);
    default:
      return absl::StrCat(InterestingNumber(random));
  }
}

void SetScalar(Message* message, const FieldDescriptor* field, Random* random) {
  const Reflection& reflection = *message->GetReflection();
  const int64_t number = InterestingNumber(random);
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection.SetInt32(message, field, static_cast<int32_t>(number));
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection.SetInt64(message, field, number);
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection.SetUInt32(message, field, static_cast<uint32_t>(number));
    case FieldDescriptor::CPPTYPE_UINT64:
      return reflection.SetUInt64(message, field, static_cast<uint64_t>(number));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection.SetDouble(message, field, InterestingDouble(random));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return reflection.SetFloat(message, field, static_cast<float>(InterestingDouble(random)));
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.SetBool(message, field, random->OneIn(2));
    case FieldDescriptor::CPPTYPE_ENUM:
      return reflection.SetEnumValue(
          message, field,
          random->OneIn(4) ? static_cast<int>(number)
                           : static_cast<int>(random->Below(
                                 static_cast<size_t>(field->enum_type()->value_count()) + 1)));
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection.SetString(message, field,
                                  InterestingText(reflection.GetString(*message, field), random));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      reflection.MutableMessage(message, field);
  }
}

void AddElement(Message* message, const FieldDescriptor* field, Random* random) {
  const Reflection& reflection = *message->GetReflection();
  const int count = reflection.FieldSize(*message, field);
  const int chosen = static_cast<int>(random->Below(static_cast<size_t>(count)));
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_MESSAGE: {
      Message* added = reflection.AddMessage(message, field);
      if (count > 0) added->CopyFrom(reflection.GetRepeatedMessage(*message, field, chosen));
      return;
    }
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection.AddString(message, field, InterestingText("x", random));
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection.AddInt64(message, field, InterestingNumber(random));
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection.AddInt32(message, field, static_cast<int32_t>(InterestingNumber(random)));
    default:
      return;
  }
}

void MutateList(Message* message, const FieldDescriptor* field, Random* random) {
  const Reflection& reflection = *message->GetReflection();
  const int count = reflection.FieldSize(*message, field);
  if (count == 0 || random->OneIn(3)) return AddElement(message, field, random);
  const int chosen = static_cast<int>(random->Below(static_cast<size_t>(count)));
  reflection.SwapElements(message, field, chosen, count - 1);
  if (random->OneIn(2)) reflection.RemoveLast(message, field);
}

void MutateAtDepth(Message* message, int depth, Random* random) {
  const google::protobuf::Descriptor& type = *message->GetDescriptor();
  if (type.field_count() == 0) return;
  const Reflection& reflection = *message->GetReflection();
  const FieldDescriptor* field =
      type.field(static_cast<int>(random->Below(static_cast<size_t>(type.field_count()))));
  const bool is_message = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
  if (field->is_repeated()) {
    const int count = reflection.FieldSize(*message, field);
    if (!is_message || count == 0 || field->is_map() || random->OneIn(4)) {
      return MutateList(message, field, random);
    }
    const int chosen = static_cast<int>(random->Below(static_cast<size_t>(count)));
    if (depth < kDepthMax) {
      MutateAtDepth(reflection.MutableRepeatedMessage(message, field, chosen), depth + 1, random);
    }
    return;
  }
  if (random->OneIn(8)) return reflection.ClearField(message, field);
  if (is_message && depth < kDepthMax && !random->OneIn(8)) {
    return MutateAtDepth(reflection.MutableMessage(message, field), depth + 1, random);
  }
  SetScalar(message, field, random);
}

}  // namespace

uint64_t Random::Next() {
  uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

int64_t InterestingNumber(Random* random) {
  const uint64_t power = uint64_t{1} << random->Below(64);
  switch (random->Below(6)) {
    case 0:
      return static_cast<int64_t>(random->Below(4));
    case 1:
      return -static_cast<int64_t>(random->Below(4));
    case 2:
      return static_cast<int64_t>(power);
    case 3:
      return static_cast<int64_t>(power - 1);
    case 4:
      return static_cast<int64_t>(~power);
    default:
      return static_cast<int64_t>(random->Below(1000));
  }
}

std::string MutateBytes(std::string input, const ByteMutation& mutation, Random* random) {
  for (size_t left = 1 + random->Below(4); left > 0; --left) MutateOnce(&input, mutation, random);
  if (input.size() > mutation.bytes_max) input.resize(mutation.bytes_max);
  return input;
}

void MutateMessage(Message* message, Random* random) { MutateAtDepth(message, 0, random); }

}  // namespace megascale::fuzz
