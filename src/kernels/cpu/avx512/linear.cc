#define DI_ISA avx512
#include "kernels/cpu/body/linear.h"
