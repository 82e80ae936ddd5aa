// Reading objects of a JSON document with errors that name the member. For documents from outside:
// the parser limits depth, and no value is taken for another type.
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megascale::tokenizer {

using Json = nlohmann::json;

// Errors: InvalidArgument - not JSON, with the byte where it goes wrong, or nested too deeply.
absl::StatusOr<Json> ParseJson(absl::string_view text);

// An object within a document. Borrows the document. Errors of its methods: InvalidArgument -
// "PATH.NAME: is TYPE, expected TYPE".
class JsonObject {
 public:
  // `path`: the object's name for people, "" for the whole document.
  static absl::StatusOr<JsonObject> Of(const Json& value, std::string path);

  // Returns nullptr if the member is absent or null.
  const Json* Find(absl::string_view name) const;
  absl::StatusOr<JsonObject> Object(absl::string_view name) const;
  // Returns an array that is present.
  absl::StatusOr<const Json*> Array(absl::string_view name) const;

  absl::StatusOr<std::string> Text(absl::string_view name) const;
  absl::StatusOr<bool> Bool(absl::string_view name, bool if_absent) const;
  // Returns an integer from 0 to 2^31 - 1; any other value is an error.
  absl::StatusOr<int32_t> Integer(absl::string_view name) const;

  // Returns the member "type", which names the component that this object describes.
  absl::StatusOr<std::string> Type() const { return Text("type"); }
  const std::string& path() const { return path_; }
  std::string PathOf(absl::string_view name) const;

 private:
  JsonObject(const Json* value, std::string path) : value_(value), path_(std::move(path)) {}

  const Json* value_;
  std::string path_;
};

// Returns `value` as an id. Errors: InvalidArgument - `path` is not an integer from 0 to 2^31 - 1.
absl::StatusOr<int32_t> IdOfJson(const Json& value, absl::string_view path);

// Returns "PATH: is TYPE, expected EXPECTED".
absl::Status WrongType(absl::string_view path, const Json* value, absl::string_view expected);

}  // namespace megascale::tokenizer
