#include "gpu/ops/products/algorithm_table.h"

#include <bit>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"

namespace megascale::gpu {
namespace {

using ops::Transpose;
using tensor::DType;
using Json = nlohmann::ordered_json;

constexpr int kFormat = 1;

const char* NameOf(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::kNone:
      return "none";
    case Epilogue::kBias:
      return "bias";
    case Epilogue::kGelu:
      return "gelu";
    case Epilogue::kBiasGelu:
      return "bias and gelu";
    case Epilogue::kGeluGradient:
      return "gradient of gelu";
    case Epilogue::kBiasGradient:
      return "gradient of bias";
  }
  return "";
}

Json ToJson(const Product& p) {
  return {{"compute", tensor::Name(p.compute)},
          {"result", tensor::Name(p.result)},
          {"m", p.m},
          {"n", p.n},
          {"k", p.k},
          {"transpose_a", p.transpose_a == Transpose::kYes},
          {"transpose_b", p.transpose_b == Transpose::kYes},
          {"accumulate", p.accumulate},
          {"tf32", p.tf32},
          {"epilogue", NameOf(p.epilogue)},
          {"a_alignment", p.a_alignment},
          {"b_alignment", p.b_alignment},
          {"c_alignment", p.c_alignment},
          {"bias_alignment", p.bias_alignment}};
}

Json ToJson(const Algorithm& a) {
  // As text: readers of JSON may take large numbers for floating point.
  std::string words;
  for (const uint64_t word : a.words) absl::StrAppend(&words, absl::StrFormat("%016x", word));
  return {{"library_version", a.library_version},
          {"id", a.id},
          {"tile", a.tile},
          {"stages", a.stages},
          {"split_k", a.split_k},
          {"reduction_scheme", a.reduction_scheme},
          {"swizzle", a.swizzle},
          {"custom_option", a.custom_option},
          {"inner_shape", a.inner_shape},
          {"cluster_shape", a.cluster_shape},
          {"words", words}};
}

// Takes values out of a JSON object and keeps the first error.
class Reader {
 public:
  explicit Reader(const Json& json) : json_(json) {
    if (!json.is_object()) Wrong("is no object");
  }

  template <typename T>
  T Number(const char* key) {
    const Json* value = Find(key);
    if (value == nullptr) return 0;
    if (!value->is_number_integer()) return Wrong(key, "is no whole number"), T{0};
    const auto number = value->get<int64_t>();
    if (!std::in_range<T>(number)) return Wrong(key, "is out of range"), T{0};
    return static_cast<T>(number);
  }
  bool Bool(const char* key) {
    const Json* value = Find(key);
    if (value == nullptr) return false;
    if (!value->is_boolean()) return Wrong(key, "is neither true nor false"), false;
    return value->get<bool>();
  }
  std::string String(const char* key) {
    const Json* value = Find(key);
    if (value == nullptr) return "";
    if (!value->is_string()) return Wrong(key, "is no string"), "";
    return value->get<std::string>();
  }

  int64_t Size(const char* key) {
    const auto size = Number<int64_t>(key);
    if (size < 1) Wrong(key, "is not greater than 0");
    return size;
  }
  int Alignment(const char* key) {
    const auto alignment = Number<uint8_t>(key);
    if (!std::has_single_bit(alignment) || alignment > kAlignmentMax) {
      Wrong(key, "is no power of two up to 16");
    }
    return alignment;
  }
  Transpose IsTransposed(const char* key) { return Bool(key) ? Transpose::kYes : Transpose::kNo; }
  DType Type(const char* key) {
    const std::string name = String(key);
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      if (name == tensor::Name(dtype)) return dtype;
    }
    Wrong(key, "is neither F32 nor BF16");
    return DType::kF32;
  }
  Epilogue EpilogueNamed(const char* key) {
    const std::string name = String(key);
    for (const Epilogue epilogue : kEpilogues) {
      if (name == NameOf(epilogue)) return epilogue;
    }
    Wrong(key, "is no epilogue that this version knows");
    return Epilogue::kNone;
  }
  std::array<uint64_t, 8> Words(const char* key) {
    constexpr size_t kDigits = 16;
    const std::string text = String(key);
    std::array<uint64_t, 8> words = {};
    if (text.size() != words.size() * kDigits) return Wrong(key, "has not 128 digits"), words;
    for (size_t i = 0; i < words.size(); ++i) {
      if (!absl::SimpleHexAtoi(text.substr(i * kDigits, kDigits), &words[i])) {
        Wrong(key, "is not hexadecimal");
      }
    }
    return words;
  }
  const Json* Find(const char* key) {
    if (!json_.is_object()) return nullptr;
    const auto found = json_.find(key);
    if (found == json_.end()) return Wrong(key, "is missing"), nullptr;
    return &*found;
  }

  const absl::Status& status() const { return status_; }

 private:
  void Wrong(const char* key, const char* what) { Wrong(absl::StrCat("\"", key, "\" ", what)); }
  void Wrong(absl::string_view what) { status_.Update(absl::InvalidArgumentError(what)); }

  const Json& json_;
  absl::Status status_;
};

absl::StatusOr<Product> ParseProduct(const Json& json) {
  Reader reader(json);
  Product p;
  p.compute = reader.Type("compute");
  p.result = reader.Type("result");
  p.m = reader.Size("m");
  p.n = reader.Size("n");
  p.k = reader.Size("k");
  p.transpose_a = reader.IsTransposed("transpose_a");
  p.transpose_b = reader.IsTransposed("transpose_b");
  p.accumulate = reader.Bool("accumulate");
  p.tf32 = reader.Bool("tf32");
  p.epilogue = reader.EpilogueNamed("epilogue");
  p.a_alignment = reader.Alignment("a_alignment");
  p.b_alignment = reader.Alignment("b_alignment");
  p.c_alignment = reader.Alignment("c_alignment");
  p.bias_alignment = reader.Alignment("bias_alignment");
  RETURN_IF_ERROR(reader.status());
  return p;
}

absl::StatusOr<Algorithm> ParseAlgorithm(const Json& json) {
  Reader reader(json);
  Algorithm a;
  a.library_version = reader.Number<uint64_t>("library_version");
  a.id = reader.Number<int32_t>("id");
  a.tile = reader.Number<uint32_t>("tile");
  a.stages = reader.Number<uint32_t>("stages");
  a.split_k = reader.Number<int32_t>("split_k");
  a.reduction_scheme = reader.Number<uint32_t>("reduction_scheme");
  a.swizzle = reader.Number<uint32_t>("swizzle");
  a.custom_option = reader.Number<uint32_t>("custom_option");
  a.inner_shape = reader.Number<uint16_t>("inner_shape");
  a.cluster_shape = reader.Number<uint16_t>("cluster_shape");
  a.words = reader.Words("words");
  RETURN_IF_ERROR(reader.status());
  return a;
}

absl::Status ParseEntry(const Json& json, AlgorithmTable* table) {
  Reader reader(json);
  const Json* product_json = reader.Find("product");
  const Json* algorithm_json = reader.Find("algorithm");
  RETURN_IF_ERROR(reader.status());
  ASSIGN_OR_RETURN(const Product product, ParseProduct(*product_json));
  const absl::StatusOr<Algorithm> algorithm = ParseAlgorithm(*algorithm_json);
  if (!algorithm.ok()) return base::Annotate(algorithm.status(), Describe(product));
  if (table->Find(product) != nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(Describe(product), " is there twice"));
  }
  table->Set(product, *algorithm);
  return absl::OkStatus();
}

absl::StatusOr<AlgorithmTable> ParseTable(const Json& json) {
  Reader reader(json);
  const int format = reader.Number<int>("format");
  AlgorithmTable table;
  const Json* products = reader.Find("products");
  RETURN_IF_ERROR(reader.status());
  if (format != kFormat) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"format\" is ", format, "; this version reads ", kFormat));
  }
  if (!products->is_array()) return absl::InvalidArgumentError("\"products\" is no array");
  if (json.contains("origin")) {
    table.set_origin(reader.String("origin"));
    RETURN_IF_ERROR(reader.status());
  }
  int index = 0;
  for (const Json& entry : *products) {
    const absl::Status status = ParseEntry(entry, &table);
    if (!status.ok()) return base::Annotate(status, absl::StrCat("product ", index));
    ++index;
  }
  return table;
}

}  // namespace

std::string Describe(const Product& p) {
  const auto operand = [](int64_t rows, int64_t cols, Transpose transposed) {
    return transposed == Transpose::kYes ? absl::StrCat("[", cols, ", ", rows, "]^T")
                                         : absl::StrCat("[", rows, ", ", cols, "]");
  };
  std::string text =
      absl::StrCat(tensor::Name(p.compute), p.tf32 ? " (as TF32) " : " ",
                   operand(p.m, p.k, p.transpose_a), " x ", operand(p.k, p.n, p.transpose_b));
  if (p.epilogue != Epilogue::kNone) absl::StrAppend(&text, " + ", NameOf(p.epilogue));
  return absl::StrCat(text, p.accumulate ? " added to " : " to ", tensor::Name(p.result));
}

std::string NameOf(const Product& p) {
  return absl::StrCat(Describe(p), ", aligned to ", p.a_alignment, ", ", p.b_alignment, ", ",
                      p.c_alignment, ", ", p.bias_alignment);
}

const Algorithm* AlgorithmTable::Find(const Product& product) const {
  const auto found = products_.find(product);
  return found == products_.end() ? nullptr : &found->second;
}

void AlgorithmTable::Set(const Product& product, const Algorithm& algorithm) {
  MEGASCALE_CHECK(product.m > 0 && product.n > 0 && product.k > 0);
  products_[product] = algorithm;
}

std::string AlgorithmTable::ToJson() const {
  std::string text = absl::StrCat("{\"format\": ", kFormat);
  if (!origin_.empty()) absl::StrAppend(&text, ", \"origin\": ", Json(origin_).dump());
  absl::StrAppend(&text, ", \"products\": [");
  const char* separator = "\n";
  for (const auto& [product, algorithm] : products_) {
    const Json entry = {{"product", gpu::ToJson(product)}, {"algorithm", gpu::ToJson(algorithm)}};
    absl::StrAppend(&text, separator, entry.dump());
    separator = ",\n";
  }
  absl::StrAppend(&text, "\n]}\n");
  return text;
}

absl::StatusOr<AlgorithmTable> AlgorithmTable::FromJson(absl::string_view text) {
  const Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  absl::StatusOr<AlgorithmTable> table =
      json.is_discarded() ? absl::InvalidArgumentError("it is no JSON") : ParseTable(json);
  if (!table.ok()) return base::Annotate(table.status(), "a table of algorithms of products");
  return table;
}

}  // namespace megascale::gpu
