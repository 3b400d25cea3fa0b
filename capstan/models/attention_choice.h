// Which of libtorch's attention kernels models use on a GPU.
#pragma once

namespace capstan::models {

// cuDNN's first: on Hopper it takes three fifths of the time of libtorch's own choice. For the
// whole process, because libtorch has one order for all; so programs call it, models do not.
void prefer_cudnn_attention();

}  // namespace capstan::models
