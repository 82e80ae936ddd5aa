#include "runtime/ops/cpu_matmul.h"

#include <omp.h>

#include <algorithm>
#include <array>
#include <unordered_map>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "oneapi/dnnl/dnnl.hpp"
#include "runtime/base/check.h"
#include "runtime/ops/cpu_kernels.h"
#include "runtime/ops/cpu_threads.h"
#include "runtime/tensor/arena.h"

namespace megascale::ops {

const char* InstructionSet() {
  switch (dnnl::get_effective_cpu_isa()) {
    case dnnl::cpu_isa::avx512_core_amx:
      return "amx_bf16";
    case dnnl::cpu_isa::avx512_core_bf16:
      return "avx512_bf16";
    case dnnl::cpu_isa::avx512_core_vnni:
    case dnnl::cpu_isa::avx512_core:
      return "avx512";
    case dnnl::cpu_isa::avx2_vnni:
    case dnnl::cpu_isa::avx2:
      return "avx2";
    default:
      return "baseline";
  }
}

namespace cpu {
namespace {

bool MultipliesBFloat16() {
  const dnnl::cpu_isa isa = dnnl::get_effective_cpu_isa();
  return isa == dnnl::cpu_isa::avx512_core_bf16 || isa == dnnl::cpu_isa::avx512_core_amx;
}

// oneDNN multiplies a transposed bf16 `a` at half the rate of a plain one, and a row-major `b` at
// down to half the rate of one in its own layout (fp32 rows of 12 KiB, bf16 weight gradients).
// Moving them costs little where no dimension is below this.
constexpr int64_t kRearrangedMin = 256;

bool IsLarge(const MatMulArgs& args) {
  const int64_t k = args.transpose_a == Transpose::kYes ? args.a.rows : args.a.cols;
  return std::min({k, args.c.rows, args.c.cols}) >= kRearrangedMin;
}
bool IsTransposedFirst(const MatMulArgs& args) {
  return args.transpose_a == Transpose::kYes && args.a.dtype == DType::kBF16 && IsLarge(args);
}
bool IsPacked(const MatMulArgs& args) {
  return args.a.dtype == DType::kF32 && args.transpose_b == Transpose::kNo && IsLarge(args);
}

// All that a prepared product depends on.
struct Shape {
  int64_t m, n, k, a_stride, b_stride, c_stride;
  DType operand, result;
  bool transpose_a, transpose_b, accumulate, bias;
  bool pack_b;  // multiply a copy of b in oneDNN's own layout

  bool operator==(const Shape&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const Shape& s) {
    return H::combine(std::move(h), s.m, s.n, s.k, s.a_stride, s.b_stride, s.c_stride, s.operand,
                      s.result, s.transpose_a, s.transpose_b, s.accumulate, s.bias, s.pack_b);
  }
};

Shape ShapeOf(const MatMulArgs& args, bool pack_b) {
  const bool transpose_a = args.transpose_a == Transpose::kYes;
  return {.m = args.c.rows,
          .n = args.c.cols,
          .k = transpose_a ? args.a.rows : args.a.cols,
          .a_stride = args.a.stride,
          .b_stride = args.b.stride,
          .c_stride = args.c.stride,
          .operand = args.a.dtype,
          .result = args.c.dtype,
          .transpose_a = transpose_a,
          .transpose_b = args.transpose_b == Transpose::kYes,
          .accumulate = args.accumulate,
          .bias = static_cast<bool>(args.bias),
          .pack_b = pack_b};
}

dnnl::memory::data_type TypeOf(DType dtype) {
  return dtype == DType::kF32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
}

dnnl::memory::desc Describe(int64_t rows, int64_t cols, int64_t stride, bool transposed,
                            DType dtype) {
  return {{rows, cols},
          TypeOf(dtype),
          transposed ? dnnl::memory::dims{1, stride} : dnnl::memory::dims{stride, 1}};
}

// A product with its arguments, whose addresses change from call to call.
struct Product {
  dnnl::matmul primitive;
  dnnl::memory a, b, c, bias, scratch;
  std::unordered_map<int, dnnl::memory> arguments;
  size_t scratch_bytes = 0;
  // Where b is packed: the copy of b, how it is made, and its bytes.
  dnnl::reorder pack;
  dnnl::memory packed_b;
  std::unordered_map<int, dnnl::memory> pack_arguments;
  size_t packed_bytes = 0;
};

Product Prepare(const Shape& s, const dnnl::engine& engine) {
  const auto a = Describe(s.m, s.k, s.a_stride, s.transpose_a, s.operand);
  const auto b = Describe(s.k, s.n, s.b_stride, s.transpose_b, s.operand);
  const auto c = Describe(s.m, s.n, s.c_stride, false, s.result);
  const auto bias = Describe(1, s.n, s.n, false, s.operand);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (s.accumulate) {
    dnnl::post_ops add;
    add.append_sum(1.0f);
    attributes.set_post_ops(add);
  }
  const auto multiplied_b =
      s.pack_b ? dnnl::memory::desc({s.k, s.n}, TypeOf(s.operand), dnnl::memory::format_tag::any)
               : b;
  const auto description = s.bias ? dnnl::matmul::desc(a, multiplied_b, bias, c)
                                  : dnnl::matmul::desc(a, multiplied_b, c);
  const dnnl::matmul::primitive_desc chosen(description, attributes, engine);
  Product product;
  product.primitive = dnnl::matmul(chosen);
  product.scratch_bytes = chosen.scratchpad_desc().get_size();
  product.a = dnnl::memory(a, engine, nullptr);
  product.b = dnnl::memory(b, engine, nullptr);
  product.c = dnnl::memory(c, engine, nullptr);
  product.scratch = dnnl::memory(chosen.scratchpad_desc(), engine, nullptr);
  product.arguments = {{DNNL_ARG_SRC, product.a},
                       {DNNL_ARG_WEIGHTS, product.b},
                       {DNNL_ARG_DST, product.c},
                       {DNNL_ARG_SCRATCHPAD, product.scratch}};
  if (s.bias) {
    product.bias = dnnl::memory(bias, engine, nullptr);
    product.arguments.emplace(DNNL_ARG_BIAS, product.bias);
  }
  if (chosen.weights_desc() != b) {
    product.packed_b = dnnl::memory(chosen.weights_desc(), engine, nullptr);
    product.packed_bytes = chosen.weights_desc().get_size();
    product.pack = dnnl::reorder(product.b, product.packed_b);
    product.pack_arguments = {{DNNL_ARG_FROM, product.b}, {DNNL_ARG_TO, product.packed_b}};
    product.arguments[DNNL_ARG_WEIGHTS] = product.packed_b;
  }
  return product;
}

// Memory that grows to the largest need and is then reused; in huge pages, as tensors are.
class Scratch {
 public:
  void* Get(size_t bytes) {
    if (bytes > size_bytes_) {
      const auto words = static_cast<int64_t>(bytes / sizeof(int32_t) + 1);
      auto arena = tensor::Arena::Create(tensor::Arena::BytesFor(DType::kI32, words));
      MEGASCALE_CHECK_MSG(arena.ok(), "no memory for the scratch space of matrix products");
      arena_ = *std::move(arena);
      memory_ = arena_.Allocate(DType::kI32, words).data;
      size_bytes_ = bytes;
    }
    return memory_;
  }

 private:
  tensor::Arena arena_;
  void* memory_ = nullptr;
  size_t size_bytes_ = 0;
};

}  // namespace

struct MatMulEngine::Implementation {
  void RunNative(const MatMulArgs& args, bool pack_b);
  void RunTransposed(const MatMulArgs& args);
  void RunInFloat(const MatMulArgs& args);
  void ConvertRows(const Matrix& from, const Matrix& to);
  Matrix InFloat(const Matrix& matrix, Scratch& scratch);

  int num_threads = 1;
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  absl::flat_hash_map<Shape, Product> products;
  Scratch scratch;
  std::array<Scratch, 4> converted;  // a, b, c and bias: in fp32, or a transposed
  Scratch packed;                    // b
};

MatMulEngine::MatMulEngine(int num_threads) : implementation_(new Implementation) {
  implementation_->num_threads = num_threads;
}

MatMulEngine::~MatMulEngine() = default;

void MatMulEngine::Run(const MatMulArgs& args) {
  if (args.c.rows == 0 || args.c.cols == 0) return;
  // The setting belongs to the calling thread, which is not always the one that made this object.
  omp_set_num_threads(implementation_->num_threads);
  try {
    if (args.a.dtype == DType::kBF16 && !MultipliesBFloat16()) {
      implementation_->RunInFloat(args);
    } else if (IsTransposedFirst(args)) {
      implementation_->RunTransposed(args);
    } else {
      implementation_->RunNative(args, IsPacked(args));
    }
  } catch (const dnnl::error& error) {
    const Shape s = ShapeOf(args, /*pack_b=*/false);
    base::CheckFailed(__FILE__, __LINE__, "oneDNN multiplies",
                      absl::StrCat(error.what(), " for m ", s.m, ", n ", s.n, ", k ", s.k, ", ",
                                   tensor::Name(s.operand), " into ", tensor::Name(s.result)));
  }
}

void MatMulEngine::Implementation::RunNative(const MatMulArgs& args, bool pack_b) {
  const Shape shape = ShapeOf(args, pack_b);
  auto found = products.find(shape);
  if (found == products.end()) found = products.emplace(shape, Prepare(shape, engine)).first;
  Product& product = found->second;
  product.a.set_data_handle(args.a.data);
  product.b.set_data_handle(args.b.data);
  product.c.set_data_handle(args.c.data);
  if (shape.bias) product.bias.set_data_handle(args.bias.data);
  product.scratch.set_data_handle(scratch.Get(product.scratch_bytes));
  if (product.packed_bytes > 0) {
    product.packed_b.set_data_handle(packed.Get(product.packed_bytes));
    product.pack.execute(stream, product.pack_arguments);
  }
  product.primitive.execute(stream, product.arguments);
}

void MatMulEngine::Implementation::RunTransposed(const MatMulArgs& args) {
  const int64_t rows = args.a.cols, cols = args.a.rows;
  MatMulArgs plain = args;
  plain.transpose_a = Transpose::kNo;
  plain.a = {converted[0].Get(rows * cols * sizeof(tensor::BFloat16)), DType::kBF16, rows, cols,
             cols};
  ForEachPart(num_threads, rows, kRearrangedMin,
              [&](int part, Range range) { cpu::Transpose(args.a, plain.a, range); });
  RunNative(plain, /*pack_b=*/true);
}

void MatMulEngine::Implementation::ConvertRows(const Matrix& from, const Matrix& to) {
  const auto row = [](const Matrix& matrix, int64_t n) {
    return Vector{matrix.as<char>() + n * matrix.stride * tensor::SizeOf(matrix.dtype),
                  matrix.dtype, matrix.cols};
  };
  ForEachPart(num_threads, from.rows, 1, [&](int part, Range rows) {
    for (int64_t n = rows.begin; n < rows.end; ++n) {
      Cast(row(from, n), row(to, n), {0, from.cols});
    }
  });
}

Matrix MatMulEngine::Implementation::InFloat(const Matrix& matrix, Scratch& memory) {
  void* data = memory.Get(matrix.rows * matrix.cols * sizeof(float));
  return {data, DType::kF32, matrix.rows, matrix.cols, matrix.cols};
}

void MatMulEngine::Implementation::RunInFloat(const MatMulArgs& args) {
  MatMulArgs in_float = args;
  in_float.a = InFloat(args.a, converted[0]);
  in_float.b = InFloat(args.b, converted[1]);
  ConvertRows(args.a, in_float.a);
  ConvertRows(args.b, in_float.b);
  if (args.bias) {
    in_float.bias = {converted[3].Get(args.bias.size * sizeof(float)), DType::kF32, args.bias.size};
    Cast(args.bias, in_float.bias, {0, args.bias.size});
  }
  if (args.c.dtype == DType::kF32) return RunNative(in_float, IsPacked(in_float));
  in_float.c = InFloat(args.c, converted[2]);
  if (args.accumulate) ConvertRows(args.c, in_float.c);
  RunNative(in_float, IsPacked(in_float));
  ConvertRows(in_float.c, args.c);
}

}  // namespace cpu
}  // namespace megascale::ops
