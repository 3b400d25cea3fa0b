// Which of libtorch's attention kernels models use on a GPU. For the whole process, because
// libtorch has one order for all; so programs call these, models do not.
#pragma once

namespace capstan::models {

// cuDNN's first: on Hopper it takes three fifths of the time of libtorch's own choice.
void prefer_cudnn_attention();

// cuDNN's last: it makes a plan for every new shape, and text that is generated has another length
// at every token.
void avoid_cudnn_attention();

}  // namespace capstan::models
