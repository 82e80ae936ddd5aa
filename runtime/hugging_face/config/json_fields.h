// Reads fields of a JSON object with their defaults; the first mistake is kept.
//
//   JsonFields fields(json, "folder/config.json");
//   model.set_hidden_size(fields.Size("hidden_size"));
//   RETURN_IF_ERROR(fields.status());
//
// Threads: plain object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace megascale::hugging_face {

inline constexpr size_t kShownBytesMax = 80;  // of a name or a value in a message

class JsonFields {
 public:
  // `prefix` is put before names in messages. Borrows `object`. Requires: it is a JSON object.
  JsonFields(const nlohmann::json& object, std::string file, std::string prefix = "")
      : object_(object), file_(std::move(file)), prefix_(std::move(prefix)) {}

  // OK until a field was wrong: InvalidArgument.
  const absl::Status& status() const { return status_; }
  // Keeps "FILE: NAME is VALUE: expected EXPECTED", if it is the first mistake. An array or object
  // is shown by its kind.
  void Refuse(absl::string_view name, absl::string_view expected);

  // Keeps a mistake that was found elsewhere, if it is the first one. Requires: `mistake` is not
  // OK.
  void Keep(const absl::Status& mistake);

  // True if the field is there and not null.
  bool Has(absl::string_view name) const;
  // True if the field is there and null.
  bool IsNull(absl::string_view name) const;
  // Returns a whole number from 1 to 2^31 - 1, or `otherwise` where the field is missing or null;
  // without `otherwise` a missing field is a mistake.
  int32_t Size(absl::string_view name, std::optional<int32_t> otherwise = std::nullopt);
  double Number(absl::string_view name, double otherwise);
  bool Flag(absl::string_view name, bool otherwise);
  std::string Text(absl::string_view name, absl::string_view otherwise);
  // Returns a list of texts; a missing field is an empty one.
  std::vector<std::string> Texts(absl::string_view name);
  // Returns the object in the field, or null.
  const nlohmann::json* Object(absl::string_view name);

  const std::string& file() const { return file_; }

 private:
  const nlohmann::json* Find(absl::string_view name) const;

  const nlohmann::json& object_;
  const std::string file_;
  const std::string prefix_;
  absl::Status status_;
};

}  // namespace megascale::hugging_face
