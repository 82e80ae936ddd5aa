#include "runtime/ops/epilogues.h"

namespace megascale::ops {

MatMulArgs WithoutEpilogues(MatMulArgs args) {
  args.activated = {};
  args.activation_in = {};
  args.d_activation_in = {};
  args.d_bias = {};
  return args;
}

void RunEpilogues(const MatMulArgs& args, Ops* ops) {
  if (args.activated) {
    ops->Activation({.kind = args.activation, .in = args.c, .out = args.activated});
  }
  if (args.d_activation_in) {
    ops->ActivationBackward({.kind = args.activation,
                             .in = args.activation_in,
                             .d_out = args.c,
                             .d_in = args.d_activation_in});
  }
  if (args.d_bias) ops->AddColumnSums(args.a, args.d_bias);
}

}  // namespace megascale::ops
