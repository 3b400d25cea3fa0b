// The loss curve of a run as one HTML page with a drawing (SVG) in it: no scripts, no other files.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace capstan::cli::train {

struct CurvePoint {
  double step = 0;
  double loss = 0;
};

struct Curve {
  std::string title;
  std::vector<CurvePoint> train;  // in order of steps; points that are not finite are left out
  std::vector<CurvePoint> validation;
  std::vector<std::pair<std::string, std::string>> facts;  // a table below the drawing
  std::string sample;                                      // text made by the model; may be empty
};

std::string curve_page(const Curve& curve);

// Round numbers that cover [low, high], at most `most` of them, for the axis.
std::vector<double> axis_marks(double low, double high, int most);

}  // namespace capstan::cli::train
