// A CUDA runtime whose version is right, and which has none of the functions.
extern "C" int cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return 0;
}
