#include "gpu/kernels/elementwise_params.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "gpu/ops/operators.h"
#include "gpu/ops/row_launch.h"
#include "runtime/base/check.h"
#include "runtime/ops/check_arguments.h"

namespace megascale::gpu {
namespace {

using kernels::ElementType;
using tensor::DType;
using tensor::Matrix;
using tensor::Vector;

std::string NameOf(ops::ActivationKind kind) {
  switch (kind) {
    case ops::ActivationKind::kGelu:
      return "Gelu";
    case ops::ActivationKind::kGeluTanh:
      return "GeluTanh";
    case ops::ActivationKind::kSwiGlu:
      return "SwiGlu";
  }
  return "";
}

// Behind the gate lie the columns of `up`, which have to be aligned too.
bool IsUpAligned(ops::ActivationKind kind, const Matrix& out) {
  return kind != ops::ActivationKind::kSwiGlu || out.cols % PackOf(out.dtype) == 0;
}

ElementType TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return ElementType::kF64;
    case DType::kF32:
      return ElementType::kF32;
    case DType::kBF16:
      return ElementType::kBF16;
    case DType::kI32:
      return ElementType::kI32;
  }
  return ElementType::kF64;
}

}  // namespace

void Rotary(Launcher& launcher, const ops::RotaryArgs& args) {
  const DType dtype = args.x.dtype;
  CheckArguments(args, dtype);
  const int64_t half = args.turned() / 2, positions = std::min(args.seq, args.x.rows);
  MEGASCALE_CHECK(positions * half <= std::numeric_limits<int32_t>::max());
  if (positions * half == 0) return;
  auto* table = static_cast<float*>(
      launcher.Workspace(static_cast<size_t>(positions * half) * 2 * sizeof(float)));
  const RowLaunch elements = LaunchOfRows(1, 1, positions * half, /*is_aligned=*/false);
  launcher.Launch("RotaryTable", elements.shape,
                  kernels::RotaryTableParams{.table = table,
                                             .positions = static_cast<int32_t>(positions),
                                             .half = static_cast<int32_t>(half),
                                             .log2_theta = std::log2(args.theta),
                                             .sign = args.inverse ? -1.0 : 1.0,
                                             .factor = args.scaling.factor,
                                             .kept_at_0 = args.scaling.kept_at_0,
                                             .kept_per_pair = args.scaling.kept_per_pair,
                                             .kept_per_frequency = args.scaling.kept_per_frequency,
                                             .amplitude = args.scaling.amplitude});
  const int64_t pack = PackOf(dtype), packs = args.heads * DivideUp(half, pack);
  const RowLaunch rows =
      LaunchOfRows(args.x.rows, args.x.cols, packs,
                   IsAligned(args.x) && half % pack == 0 && args.head_dim % pack == 0);
  launcher.Launch(absl::StrCat("Rotary", tensor::Name(dtype)).c_str(), rows.shape,
                  kernels::RotaryParams{.x = RowsOf(args.x),
                                        .table = table,
                                        .seq = static_cast<int32_t>(args.seq),
                                        .heads = static_cast<int32_t>(args.heads),
                                        .head_dim = static_cast<int32_t>(args.head_dim),
                                        .half = static_cast<int32_t>(half),
                                        .split = rows.split});
}

void Activation(Launcher& launcher, const ops::ActivationArgs& args) {
  const DType dtype = args.in.dtype;
  CheckArguments(args, dtype);
  Matrix in = args.in, out = args.out;
  const bool is_aligned = AreAligned({in, out}) && IsUpAligned(args.kind, out);
  if (args.kind != ops::ActivationKind::kSwiGlu) JoinRows({&in, &out});
  const RowLaunch rows = LaunchOver(out, PackOf(dtype), is_aligned);
  launcher.Launch(
      absl::StrCat(NameOf(args.kind), tensor::Name(dtype)).c_str(), rows.shape,
      kernels::ActivationParams{.in = RowsOf(in), .out = RowsOf(out), .split = rows.split});
}

void ActivationBackward(Launcher& launcher, const ops::ActivationBackwardArgs& args) {
  const DType dtype = args.in.dtype;
  CheckArguments(args, dtype);
  Matrix in = args.in, d_out = args.d_out, d_in = args.d_in;
  const bool is_aligned = AreAligned({in, d_out, d_in}) && IsUpAligned(args.kind, d_out);
  if (args.kind != ops::ActivationKind::kSwiGlu) JoinRows({&in, &d_out, &d_in});
  const RowLaunch rows = LaunchOver(d_out, PackOf(dtype), is_aligned);
  launcher.Launch(
      absl::StrCat(NameOf(args.kind), "Backward", tensor::Name(dtype)).c_str(), rows.shape,
      kernels::ActivationBackwardParams{
          .in = RowsOf(in), .d_out = RowsOf(d_out), .d_in = RowsOf(d_in), .split = rows.split});
}

void Add(Launcher& launcher, const Matrix& a, const Matrix& b, const Matrix& out) {
  const DType dtype = out.dtype;
  ops::CheckAdd(a, b, out, dtype);
  Matrix left = a, right = b, sum = out;
  const bool is_aligned = AreAligned({left, right, sum});
  JoinRows({&left, &right, &sum});
  const RowLaunch rows = LaunchOver(sum, PackOf(dtype), is_aligned);
  launcher.Launch(
      absl::StrCat("Add", tensor::Name(dtype)).c_str(), rows.shape,
      kernels::AddParams{
          .a = RowsOf(left), .b = RowsOf(right), .out = RowsOf(sum), .split = rows.split});
}

void AddScaled(Launcher& launcher, double factor, const Vector& x, const Vector& out) {
  ops::CheckAddScaled(x, out, DType::kF32);
  const RowLaunch rows =
      LaunchOver(AsRow(out), PackOf(DType::kF32), AreAligned({AsRow(x), AsRow(out)}));
  launcher.Launch("AddScaledF32", rows.shape,
                  kernels::AddScaledParams{.x = x.as<float>(),
                                           .out = out.as<float>(),
                                           .factor = static_cast<float>(factor),
                                           .split = rows.split});
}

void Cast(Launcher& launcher, const Vector& from, const Vector& to) {
  MEGASCALE_CHECK(from.size == to.size);
  const auto is_fast = [](DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16; };
  const bool are_fast = is_fast(from.dtype) && is_fast(to.dtype);
  const std::string kernel =
      are_fast ? absl::StrCat("Cast", tensor::Name(from.dtype), "To", tensor::Name(to.dtype))
               : "CastAny";
  const int64_t pack = are_fast ? std::max(PackOf(from.dtype), PackOf(to.dtype)) : 1;
  const RowLaunch rows = LaunchOver(AsRow(to), pack, AreAligned({AsRow(from), AsRow(to)}));
  launcher.Launch(kernel.c_str(), rows.shape,
                  kernels::CastParams{.from = from.data,
                                      .to = to.data,
                                      .split = rows.split,
                                      .from_type = TypeOf(from.dtype),
                                      .to_type = TypeOf(to.dtype)});
}

}  // namespace megascale::gpu
