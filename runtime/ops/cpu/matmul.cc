#include "runtime/ops/cpu/matmul.h"

#include <omp.h>

#include <algorithm>
#include <array>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "oneapi/dnnl/dnnl.hpp"
#include "runtime/base/check.h"
#include "runtime/ops/cpu/kernels.h"
#include "runtime/ops/cpu/threads.h"
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

bool MultipliesBFloat16() {
  const dnnl::cpu_isa isa = dnnl::get_effective_cpu_isa();
  return isa == dnnl::cpu_isa::avx512_core_bf16 || isa == dnnl::cpu_isa::avx512_core_amx;
}

namespace {

// oneDNN multiplies a transposed bf16 `a` at half the rate of a plain one, and a row-major `b` at
// down to half the rate of one in its own layout. Rearranging them costs little if every dimension
// is at least this.
constexpr int64_t kRearrangedMin = 256;
// Rows of a transposed `a` that are rearranged and multiplied at a time, so that they stay in the
// second-level cache in between.
constexpr int64_t kTransposedRows = 384;
constexpr int64_t kTransposedGrain = 32;
// Longer sums of bf16 products are split into parts of about this length: oneDNN reads whole rows
// of `a` for each block of the result, and longer rows fit no cache.
constexpr int64_t kSplitLength = 4096;

int64_t SumLength(const MatMulArgs& args) {
  return args.transpose_a == Transpose::kYes ? args.a.rows : args.a.cols;
}
bool IsBFloat16(const Matrix& matrix) { return matrix.dtype == DType::kBF16; }
bool IsLarge(const MatMulArgs& args) {
  return std::min({SumLength(args), args.c.rows, args.c.cols}) >= kRearrangedMin;
}
bool IsSplit(const MatMulArgs& args) {
  return args.transpose_a == Transpose::kNo && args.transpose_b == Transpose::kNo && !args.bias &&
         IsBFloat16(args.a) && IsLarge(args) && args.a.cols > 2 * kSplitLength;
}
bool IsTransposedFirst(const MatMulArgs& args) {
  return args.transpose_a == Transpose::kYes && IsBFloat16(args.a) && IsLarge(args);
}
bool IsPacked(const MatMulArgs& args) {
  return args.transpose_b == Transpose::kNo && IsBFloat16(args.b) && IsLarge(args);
}
// Whether an fp32 product uses oneDNN's sgemm. On two cores it is faster than oneDNN's primitive if
// each thread calls it for its own part of the result; but not for a transposed `b` with a narrow
// result.
bool IsGemm(const MatMulArgs& args) {
  const bool is_narrow = args.c.cols <= args.c.rows;
  return IsLarge(args) && !(args.transpose_b == Transpose::kYes && is_narrow);
}
bool IsSharedByCols(const MatMulArgs& args) { return args.c.cols >= args.c.rows; }
constexpr int64_t kGemmGrain = 16;

// How a product is computed.
enum class Way : uint8_t { kInFloat, kTransposed, kSplit, kGemm, kNative };

Way WayOf(const MatMulArgs& args) {
  if (IsBFloat16(args.a) && !MultipliesBFloat16()) return Way::kInFloat;
  if (IsTransposedFirst(args)) return Way::kTransposed;
  if (IsSplit(args)) return Way::kSplit;
  return !IsBFloat16(args.a) && IsGemm(args) ? Way::kGemm : Way::kNative;
}

int64_t ElementsOf(const Matrix& matrix) { return matrix.rows * matrix.cols; }

// Blocks of oneDNN have at most 64 columns and 64 rows.
int64_t PackedBytes(const MatMulArgs& args) {
  constexpr int64_t kBlock = 64;
  const auto padded = [](int64_t size) { return (size + kBlock - 1) / kBlock * kBlock; };
  return padded(args.b.rows) * padded(args.b.cols) * int64_t{sizeof(tensor::BFloat16)};
}

// Returns the bytes that sgemm of oneDNN 2.6 packs at a time, over all threads: blocks of both
// operands with at most kDepth steps of the sum, kCols columns (padded) and kRows rows. It does not
// pack small operands.
int64_t GemmBytes(const MatMulArgs& args, int num_threads) {
  constexpr int64_t kDepth = 384, kCols = 9984, kPadding = 48, kRows = 384;
  const int64_t cols = IsSharedByCols(args) ? args.c.cols / num_threads + kGemmGrain : args.c.cols;
  return num_threads * int64_t{sizeof(float)} * kDepth * (std::min(kCols, cols + kPadding) + kRows);
}

int64_t TransposedBytes(const MatMulArgs& args) {
  return int64_t{sizeof(tensor::BFloat16)} * std::min(kTransposedRows, args.c.rows) *
         SumLength(args);
}

// Everything that a prepared product depends on.
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
          .k = SumLength(args),
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

// A prepared product with its arguments, whose addresses change from call to call.
struct Product {
  dnnl::matmul primitive;
  dnnl::memory a, b, c, bias, scratch;
  std::vector<dnnl_exec_arg_t> arguments;
  size_t scratch_bytes = 0;
  // If b is packed: its copy, the size of the copy, and how to make it: with Pack if the layout
  // interleaves pairs of rows (pair_blocks then has sizes), otherwise with oneDNN.
  dnnl::memory packed_b;
  size_t packed_bytes = 0;
  PairBlocks pair_blocks;
  dnnl::reorder pack;
  std::vector<dnnl_exec_arg_t> pack_arguments;
};

// Returns the blocks of a bf16 layout that interleaves pairs of rows; without sizes for other
// layouts.
PairBlocks PairBlocksOf(const dnnl::memory::desc& layout) {
  const dnnl_memory_desc_t& data = layout.data;
  const dnnl_blocking_desc_t& blocking = data.format_desc.blocking;
  const bool has_pairs = data.format_kind == dnnl_blocked && data.data_type == dnnl_bf16 &&
                         blocking.inner_nblks == 3 && blocking.inner_idxs[0] == 0 &&
                         blocking.inner_idxs[1] == 1 && blocking.inner_idxs[2] == 0 &&
                         blocking.inner_blks[2] == 2;
  if (!has_pairs) return {};
  return {.block_pairs = blocking.inner_blks[0],
          .block_cols = blocking.inner_blks[1],
          .row_block_stride = blocking.strides[0],
          .col_block_stride = blocking.strides[1]};
}

// Like primitive.execute, which would copy the arguments to the heap.
void Execute(const dnnl::primitive& primitive, const dnnl::stream& stream,
             const std::vector<dnnl_exec_arg_t>& arguments) {
  dnnl::error::wrap_c_api(
      dnnl_primitive_execute(primitive.get(), stream.get(), static_cast<int>(arguments.size()),
                             arguments.data()),
      "could not execute a primitive");
}

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
  if (s.bias) product.bias = dnnl::memory(bias, engine, nullptr);
  if (chosen.weights_desc() != b) {
    product.packed_b = dnnl::memory(chosen.weights_desc(), engine, nullptr);
    product.packed_bytes = chosen.weights_desc().get_size();
    product.pair_blocks = PairBlocksOf(chosen.weights_desc());
    if (product.pair_blocks.block_cols == 0) {
      product.pack = dnnl::reorder(product.b, product.packed_b);
      product.pack_arguments = {{DNNL_ARG_FROM, product.b.get()},
                                {DNNL_ARG_TO, product.packed_b.get()}};
    }
  }
  const dnnl::memory& multiplied = product.packed_bytes > 0 ? product.packed_b : product.b;
  product.arguments = {{DNNL_ARG_SRC, product.a.get()},
                       {DNNL_ARG_WEIGHTS, multiplied.get()},
                       {DNNL_ARG_DST, product.c.get()},
                       {DNNL_ARG_SCRATCHPAD, product.scratch.get()}};
  if (s.bias) product.arguments.push_back({DNNL_ARG_BIAS, product.bias.get()});
  return product;
}

Matrix Part(const Matrix& matrix, int64_t row, int64_t col, int64_t rows, int64_t cols) {
  const auto offset =
      (row * matrix.stride + col) * static_cast<int64_t>(tensor::SizeOf(matrix.dtype));
  return {matrix.as<char>() + offset, matrix.dtype, rows, cols, matrix.stride};
}

// Returns the rows `rows` or the columns `cols` of op(a), op(b), c and the bias.
MatMulArgs RowsOf(const MatMulArgs& args, Range rows) {
  MatMulArgs part = args;
  part.c = Part(args.c, rows.begin, 0, rows.size(), args.c.cols);
  part.a = args.transpose_a == Transpose::kYes
               ? Part(args.a, 0, rows.begin, args.a.rows, rows.size())
               : Part(args.a, rows.begin, 0, rows.size(), args.a.cols);
  return part;
}
MatMulArgs ColsOf(const MatMulArgs& args, Range cols) {
  MatMulArgs part = args;
  part.c = Part(args.c, 0, cols.begin, args.c.rows, cols.size());
  part.b = args.transpose_b == Transpose::kYes
               ? Part(args.b, cols.begin, 0, cols.size(), args.b.cols)
               : Part(args.b, 0, cols.begin, args.b.rows, cols.size());
  if (args.bias) part.bias = {args.bias.as<float>() + cols.begin, DType::kF32, cols.size()};
  return part;
}

// Runs on the calling thread alone.
void RunGemmPart(const MatMulArgs& args) {
  omp_set_num_threads(1);
  for (int64_t row = 0; args.bias && row < args.c.rows; ++row) {
    std::copy_n(args.bias.as<float>(), args.bias.size, args.c.as<float>() + row * args.c.stride);
  }
  const auto letter = [](ops::Transpose side) { return side == ops::Transpose::kYes ? 'T' : 'N'; };
  const float scale_of_c = args.accumulate || args.bias ? 1.0f : 0.0f;
  const dnnl_status_t status =
      dnnl_sgemm(letter(args.transpose_a), letter(args.transpose_b), args.c.rows, args.c.cols,
                 SumLength(args), /*alpha=*/1.0f, args.a.as<float>(), args.a.stride,
                 args.b.as<float>(), args.b.stride, scale_of_c, args.c.as<float>(), args.c.stride);
  MEGASCALE_CHECK_MSG(status == dnnl_success, "oneDNN's sgemm failed");
}

// Requires: IsGemm(args).
void RunGemm(const MatMulArgs& args, int num_threads) {
  const bool by_cols = IsSharedByCols(args);
  ForEachPart(num_threads, by_cols ? args.c.cols : args.c.rows, kGemmGrain, [&](int, Range part) {
    RunGemmPart(by_cols ? ColsOf(args, part) : RowsOf(args, part));
  });
}

// Memory that grows to the largest request and is then reused; in huge pages, like tensors.
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
  Product& Find(const MatMulArgs& args, bool pack_b);
  void PackB(Product& product, const Matrix& b);
  void Multiply(Product& product, const MatMulArgs& args);
  void RunNative(const MatMulArgs& args, bool pack_b);
  void RunTransposed(const MatMulArgs& args);
  void RunSplit(const MatMulArgs& args);
  void RunInFloat(const MatMulArgs& args);
  void ConvertRows(const Matrix& from, const Matrix& to);
  Matrix InFloat(const Matrix& matrix, Scratch& scratch);

  int num_threads = 1;
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  absl::flat_hash_map<Shape, Product> products;
  Scratch scratch;
  std::array<Scratch, 4> converted;  // a, b, c and bias in fp32; or a transposed
  Scratch packed;                    // b
};

ProductCopies CopiesOf(const MatMulArgs& args, int num_threads) {
  ProductCopies copies;
  const int64_t in_float = IsBFloat16(args.c) ? int64_t{sizeof(float)} * ElementsOf(args.c) : 0;
  switch (WayOf(args)) {
    case Way::kInFloat:
      copies.a = int64_t{sizeof(float)} * ElementsOf(args.a);
      copies.b = int64_t{sizeof(float)} * ElementsOf(args.b);
      copies.c = in_float;
      if (IsGemm(args)) copies.in_gemm = GemmBytes(args, num_threads);
      break;
    case Way::kTransposed:
      copies.a = TransposedBytes(args);
      copies.packed_b = PackedBytes(args);
      break;
    case Way::kSplit:
      copies.c = in_float;
      break;
    case Way::kGemm:
      copies.in_gemm = GemmBytes(args, num_threads);
      break;
    case Way::kNative:
      if (IsPacked(args)) copies.packed_b = PackedBytes(args);
      break;
  }
  return copies;
}

MatMulEngine::MatMulEngine(int num_threads) : implementation_(new Implementation) {
  implementation_->num_threads = num_threads;
}

MatMulEngine::~MatMulEngine() = default;

void MatMulEngine::Run(const MatMulArgs& args) {
  if (args.c.rows == 0 || args.c.cols == 0) return;
  // The setting is per thread, and this thread may not be the one that made the object.
  omp_set_num_threads(implementation_->num_threads);
  omp_set_dynamic(0);  // use all threads: oneDNN relies on it
  try {
    switch (WayOf(args)) {
      case Way::kInFloat:
        return implementation_->RunInFloat(args);
      case Way::kTransposed:
        return implementation_->RunTransposed(args);
      case Way::kSplit:
        return implementation_->RunSplit(args);
      case Way::kGemm:
        return RunGemm(args, implementation_->num_threads);
      case Way::kNative:
        return implementation_->RunNative(args, IsPacked(args));
    }
  } catch (const dnnl::error& error) {
    const Shape s = ShapeOf(args, /*pack_b=*/false);
    base::CheckFailed(__FILE__, __LINE__, "oneDNN multiplies",
                      absl::StrCat(error.what(), " for m ", s.m, ", n ", s.n, ", k ", s.k, ", ",
                                   tensor::Name(s.operand), " into ", tensor::Name(s.result)));
  }
}

Product& MatMulEngine::Implementation::Find(const MatMulArgs& args, bool pack_b) {
  const Shape shape = ShapeOf(args, pack_b);
  auto found = products.find(shape);
  if (found == products.end()) found = products.emplace(shape, Prepare(shape, engine)).first;
  return found->second;
}

void MatMulEngine::Implementation::PackB(Product& product, const Matrix& b) {
  void* to = packed.Get(product.packed_bytes);
  if (product.pair_blocks.block_cols == 0) {
    product.b.set_data_handle(b.data);
    product.packed_b.set_data_handle(to);
    Execute(product.pack, stream, product.pack_arguments);
    return;
  }
  PairBlocks blocks = product.pair_blocks;
  blocks.data = static_cast<uint16_t*>(to);
  const int64_t block_rows = 2 * blocks.block_pairs;
  ForEachPart(num_threads, (b.rows + block_rows - 1) / block_rows, 1,
              [&](int part, Range row_blocks) { cpu::Pack(b, blocks, row_blocks); });
}

// Requires: b was packed, if the product needs that.
void MatMulEngine::Implementation::Multiply(Product& product, const MatMulArgs& args) {
  product.a.set_data_handle(args.a.data);
  product.b.set_data_handle(args.b.data);
  product.c.set_data_handle(args.c.data);
  if (args.bias) product.bias.set_data_handle(args.bias.data);
  if (product.packed_bytes > 0) product.packed_b.set_data_handle(packed.Get(product.packed_bytes));
  product.scratch.set_data_handle(scratch.Get(product.scratch_bytes));
  Execute(product.primitive, stream, product.arguments);
}

void MatMulEngine::Implementation::RunNative(const MatMulArgs& args, bool pack_b) {
  Product& product = Find(args, pack_b);
  if (product.packed_bytes > 0) PackB(product, args.b);
  Multiply(product, args);
}

void MatMulEngine::Implementation::RunTransposed(const MatMulArgs& args) {
  const int64_t k = args.a.rows;
  void* const transposed = converted[0].Get(TransposedBytes(args));
  dnnl::memory::desc packed_layout;
  for (int64_t begin = 0; begin < args.c.rows; begin += kTransposedRows) {
    const int64_t rows = std::min(kTransposedRows, args.c.rows - begin);
    MatMulArgs part = args;
    part.transpose_a = Transpose::kNo;
    part.a = {transposed, DType::kBF16, rows, k, k};
    part.c = Part(args.c, begin, 0, rows, args.c.cols);
    const Matrix columns = Part(args.a, 0, begin, k, rows);
    ForEachPart(num_threads, rows, kTransposedGrain,
                [&](int, Range range) { cpu::Transpose(columns, part.a, range); });
    Product& product = Find(part, /*pack_b=*/true);
    if (product.packed_bytes > 0 && (begin == 0 || product.packed_b.get_desc() != packed_layout)) {
      PackB(product, args.b);
      packed_layout = product.packed_b.get_desc();
    }
    Multiply(product, part);
  }
}

void MatMulEngine::Implementation::RunSplit(const MatMulArgs& args) {
  const bool in_place = args.c.dtype == DType::kF32;
  MatMulArgs part = args;
  if (!in_place) {
    part.c = InFloat(args.c, converted[2]);
    if (args.accumulate) ConvertRows(args.c, part.c);
  }
  const int64_t k = args.a.cols;
  const int64_t num_parts = k / kSplitLength;
  for (int64_t i = 0; i < num_parts; ++i) {
    const int64_t begin = k * i / num_parts, end = k * (i + 1) / num_parts;
    part.a = Part(args.a, 0, begin, args.a.rows, end - begin);
    part.b = Part(args.b, begin, 0, end - begin, args.b.cols);
    RunNative(part, /*pack_b=*/false);
    part.accumulate = true;
  }
  if (!in_place) ConvertRows(part.c, args.c);
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
  const bool in_place = args.c.dtype == DType::kF32;
  if (!in_place) {
    in_float.c = InFloat(args.c, converted[2]);
    if (args.accumulate) ConvertRows(args.c, in_float.c);
  }
  IsGemm(in_float) ? RunGemm(in_float, num_threads) : RunNative(in_float, /*pack_b=*/false);
  if (!in_place) ConvertRows(in_float.c, args.c);
}

}  // namespace cpu
}  // namespace megascale::ops
