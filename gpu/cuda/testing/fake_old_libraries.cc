// Libraries as they were before the versions that the program needs: each answers for its version
// and has nothing else.
#include <cstddef>

extern "C" {

int cudaRuntimeGetVersion(int* version) {
  *version = 12040;
  return 0;
}
size_t cublasLtGetVersion() { return 120400; }
int ncclGetVersion(int* version) {
  *version = 21903;
  return 0;
}

}  // extern "C"
