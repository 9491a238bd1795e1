#define DI_ISA avx2
#include "kernels/cpu/body/table.h"
