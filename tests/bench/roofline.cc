#include "tests/bench/roofline.h"

#include <immintrin.h>
#include <omp.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <vector>

#include "oneapi/dnnl/dnnl.hpp"
#include "runtime/base/benchmark_timer.h"
#include "runtime/base/check.h"
#include "runtime/tensor/arena.h"

namespace megascale::bench {
namespace {

using dnnl::memory;

constexpr base::Tries kTries = {.seconds = 0.25, .least = 3, .most = 30};

memory::data_type TypeOf(ops::DType dtype) {
  return dtype == ops::DType::kF32 ? memory::data_type::f32 : memory::data_type::bf16;
}

enum class Layout : uint8_t { kPlain, kTransposed, kChosen };

// Describes [batch, rows, cols], or [rows, cols] if there is no batch.
memory::desc Describe(int64_t batch, int64_t rows, int64_t cols, memory::data_type type,
                      Layout layout) {
  const bool flat = batch == 0;
  const memory::dims dims = flat ? memory::dims{rows, cols} : memory::dims{batch, rows, cols};
  if (layout == Layout::kChosen) return {dims, type, memory::format_tag::any};
  const bool plain = layout == Layout::kPlain;
  const memory::format_tag flat_tag = plain ? memory::format_tag::ab : memory::format_tag::ba;
  const memory::format_tag tag = plain ? memory::format_tag::abc : memory::format_tag::acb;
  return {dims, type, flat ? flat_tag : tag};
}

struct Product {
  int64_t batch, m, n, k;
  memory::data_type operand, result;
  bool accumulate;
};

// Fills a buffer with numbers like those of training: zeros would make products faster, denormals
// slower.
void Fill(const memory& buffer, memory::data_type type) {
  uint32_t state = 1;
  const size_t bytes = buffer.get_desc().get_size();
  const auto next = [&] {
    state = state * 1664525 + 1013904223;
    return static_cast<float>(state >> 8) * 0x1p-23f - 1;
  };
  if (type == memory::data_type::f32) {
    auto* data = static_cast<float*>(buffer.get_data_handle());
    for (size_t i = 0; i < bytes / sizeof(float); ++i) data[i] = next();
  } else {
    auto* data = static_cast<tensor::BFloat16*>(buffer.get_data_handle());
    for (size_t i = 0; i < bytes / sizeof(tensor::BFloat16); ++i) {
      data[i] = tensor::ToBFloat16(next());
    }
  }
}

double Seconds(const Product& p, Layout a_layout, Layout b_layout) {
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  dnnl::primitive_attr attributes;
  if (p.accumulate) {
    dnnl::post_ops add;
    add.append_sum(1.0f);
    attributes.set_post_ops(add);
  }
  try {
    const dnnl::matmul::primitive_desc chosen(
        dnnl::matmul::desc(Describe(p.batch, p.m, p.k, p.operand, a_layout),
                           Describe(p.batch, p.k, p.n, p.operand, b_layout),
                           Describe(p.batch, p.m, p.n, p.result, Layout::kPlain)),
        attributes, engine);
    const memory a(chosen.src_desc(), engine), b(chosen.weights_desc(), engine);
    const memory c(chosen.dst_desc(), engine);
    Fill(a, p.operand);
    Fill(b, p.operand);
    Fill(c, p.result);
    const dnnl::matmul primitive(chosen);
    const std::unordered_map<int, memory> arguments = {
        {DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}};
    return base::LeastSeconds(kTries, [&] { primitive.execute(stream, arguments); });
  } catch (const dnnl::error&) {
    return 1e30;  // a layout that oneDNN does not multiply
  }
}

// How threads call oneDNN's sgemm: one thread for the whole product, which oneDNN then splits; or
// each thread for its own rows or columns.
enum class Share : uint8_t { kWhole, kByRows, kByCols };

// As above, with sgemm.
double GemmSeconds(const Product& p, Layout layout_a, Layout layout_b, Share share,
                   int num_threads) {
  const bool transpose_a = layout_a == Layout::kTransposed;
  const bool transpose_b = layout_b == Layout::kTransposed;
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const auto make = [&](int64_t rows, int64_t cols) {
    memory made(Describe(0, rows, cols, memory::data_type::f32, Layout::kPlain), engine);
    Fill(made, memory::data_type::f32);
    return made;
  };
  const memory a = make(p.m, p.k), b = make(p.k, p.n), c = make(p.m, p.n);
  const auto floats = [](const memory& of) { return static_cast<float*>(of.get_data_handle()); };
  const auto multiply = [&](int64_t row, int64_t rows, int64_t col, int64_t cols) {
    const dnnl_status_t status = dnnl_sgemm(
        transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', rows, cols, p.k,
        /*alpha=*/1.0f, floats(a) + (transpose_a ? row : row * p.k), transpose_a ? p.m : p.k,
        floats(b) + (transpose_b ? col * p.k : col), transpose_b ? p.k : p.n,
        p.accumulate ? 1.0f : 0.0f, floats(c) + row * p.n + col, p.n);
    MEGASCALE_CHECK_MSG(status == dnnl_success, "oneDNN's sgemm failed");
  };
  if (share == Share::kWhole) {
    return base::LeastSeconds(kTries, [&] { multiply(0, p.m, 0, p.n); });
  }
  return base::LeastSeconds(kTries, [&] {
    const bool by_rows = share == Share::kByRows;
    const int64_t size = by_rows ? p.m : p.n;
#pragma omp parallel for schedule(static, 1) num_threads(num_threads)
    for (int part = 0; part < num_threads; ++part) {
      omp_set_num_threads(1);
      const int64_t begin = size * part / num_threads, end = size * (part + 1) / num_threads;
      by_rows ? multiply(begin, end - begin, 0, p.n) : multiply(0, p.m, begin, end - begin);
    }
  });
}

double BestRate(const Product& product, int num_threads) {
  omp_set_num_threads(num_threads);
  double best = 1e30;
  for (const Layout a : {Layout::kPlain, Layout::kTransposed, Layout::kChosen}) {
    for (const Layout b : {Layout::kPlain, Layout::kTransposed, Layout::kChosen}) {
      best = std::min(best, Seconds(product, a, b));
    }
  }
  if (product.batch == 0 && product.operand == memory::data_type::f32) {
    for (const Layout a : {Layout::kPlain, Layout::kTransposed}) {
      for (const Layout b : {Layout::kPlain, Layout::kTransposed}) {
        for (const Share share : {Share::kWhole, Share::kByRows, Share::kByCols}) {
          if (share != Share::kWhole && num_threads == 1) continue;
          best = std::min(best, GemmSeconds(product, a, b, share, num_threads));
        }
      }
    }
  }
  MEGASCALE_CHECK_MSG(best < 1e30, "oneDNN multiplies no layout of this shape");
  return 2.0 * static_cast<double>(std::max<int64_t>(product.batch, 1)) *
         static_cast<double>(product.m * product.n * product.k) / best;
}

}  // namespace

double BestProductRate(const ProductShape& shape, int num_threads) {
  return BestRate({.batch = 0,
                   .m = shape.m,
                   .n = shape.n,
                   .k = shape.k,
                   .operand = TypeOf(shape.operand),
                   .result = TypeOf(shape.result),
                   .accumulate = shape.accumulate},
                  num_threads);
}

double BestAttentionRate(const AttentionShape& shape, int num_threads) {
  const memory::data_type type = TypeOf(shape.dtype);
  const auto rate = [&](int64_t n, int64_t k) {
    return BestRate({.batch = shape.batch_heads,
                     .m = shape.seq,
                     .n = n,
                     .k = k,
                     .operand = type,
                     .result = memory::data_type::f32,
                     .accumulate = false},
                    num_threads);
  };
  // Scores, forward and again backward, and dP are [T, D] [D, T]; the other four [T, T] [T, D].
  return 7 / (3 / rate(shape.seq, shape.head_dim) + 4 / rate(shape.head_dim, shape.seq));
}

__attribute__((target("avx2,fma"))) double MeasureBandwidth(int num_threads) {
  constexpr int64_t kFloats = int64_t{48} << 20;
  auto arena = tensor::Arena::Create(3 * tensor::Arena::BytesFor(ops::DType::kF32, kFloats));
  MEGASCALE_CHECK_MSG(arena.ok(), "no memory for the measurement of bandwidth");
  float* a = arena->Allocate(ops::DType::kF32, kFloats).as<float>();
  float* b = arena->Allocate(ops::DType::kF32, kFloats).as<float>();
  float* c = arena->Allocate(ops::DType::kF32, kFloats).as<float>();
  std::fill(b, b + kFloats, 1.0f);
  std::fill(c, c + kFloats, 2.0f);
  const __m256 half = _mm256_set1_ps(0.5f);
  const auto measure = [&](int arrays, const auto& body) {
    const double seconds = base::LeastSeconds(kTries, [&] {
#pragma omp parallel for schedule(static) num_threads(num_threads)
      for (int64_t i = 0; i < kFloats; i += 8) body(i);
    });
    return static_cast<double>(arrays) * sizeof(float) * kFloats / seconds;
  };
  const double fill = measure(
      1, [&](int64_t i) __attribute__((target("avx2,fma"))) { _mm256_stream_ps(a + i, half); });
  const double copy = measure(
      2, [&](int64_t i) __attribute__((target("avx2,fma"))) {
        _mm256_stream_ps(a + i, _mm256_load_ps(b + i));
      });
  const double triad = measure(
      3, [&](int64_t i) __attribute__((target("avx2,fma"))) {
        _mm256_stream_ps(a + i,
                         _mm256_fmadd_ps(half, _mm256_load_ps(c + i), _mm256_load_ps(b + i)));
      });
  return std::max({fill, copy, triad});
}

namespace {

// More chains than are under way at once (latency times units, at most 10), fewer than registers.
constexpr int kChains = 12;
constexpr int64_t kLinks = int64_t{1} << 20;

// The results of both functions depend on all kChains * kLinks instructions, so that the compiler
// keeps them.
__attribute__((target("avx512f"))) float MultiplyAddIn512Bits() {
  const __m512 factor = _mm512_set1_ps(0.5f), term = _mm512_set1_ps(1.0f);
  __m512 sums[kChains];
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  for (int64_t i = 0; i < kLinks; ++i) {
#pragma GCC unroll 12
    for (__m512& sum : sums) sum = _mm512_fmadd_ps(sum, factor, term);
  }
  float all = 0;
  for (const __m512& sum : sums) all += _mm512_cvtss_f32(sum);
  return all;
}

__attribute__((target("avx2,fma"))) float MultiplyAddIn256Bits() {
  const __m256 factor = _mm256_set1_ps(0.5f), term = _mm256_set1_ps(1.0f);
  __m256 sums[kChains];
  for (__m256& sum : sums) sum = _mm256_setzero_ps();
  for (int64_t i = 0; i < kLinks; ++i) {
#pragma GCC unroll 12
    for (__m256& sum : sums) sum = _mm256_fmadd_ps(sum, factor, term);
  }
  float all = 0;
  for (const __m256& sum : sums) all += _mm256_cvtss_f32(sum);
  return all;
}

}  // namespace

double MeasureMultiplyAddRate(int num_threads) {
  const bool is_wide = __builtin_cpu_supports("avx512f") != 0;
  volatile float kept = 0;
  const double seconds = base::LeastSeconds(kTries, [&] {
    float all = 0;
#pragma omp parallel for schedule(static, 1) num_threads(num_threads) reduction(+ : all)
    for (int thread = 0; thread < num_threads; ++thread) {
      all += is_wide ? MultiplyAddIn512Bits() : MultiplyAddIn256Bits();
    }
    kept = all;
  });
  const double flops = 2.0 * (is_wide ? 16 : 8) * kChains * static_cast<double>(kLinks);
  return num_threads * flops / seconds;
}

}  // namespace megascale::bench
