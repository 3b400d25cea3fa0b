#include "capstan/cli/train/loss_curve.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include <fmt/format.h>

namespace capstan::cli::train {
namespace {

// The drawing, in its own units: few of them, so that text is readable where a phone shows the
// whole width.
constexpr double kPageWidth = 480;
constexpr double kPageHeight = 320;
constexpr double kLeft = 54;
constexpr double kRight = 26;
constexpr double kTop = 12;
constexpr double kBottom = 46;
constexpr double kFontSize = 15;
// More points than the drawing has columns show nothing more.
constexpr std::size_t kMostPoints = 1000;

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::vector<CurvePoint> drawable(const std::vector<CurvePoint>& points) {
  std::vector<CurvePoint> finite;
  for (const CurvePoint& point : points) {
    if (std::isfinite(point.loss)) finite.push_back(point);
  }
  if (finite.size() <= kMostPoints) return finite;
  std::vector<CurvePoint> fewer;
  const std::size_t stride = (finite.size() + kMostPoints - 1) / kMostPoints;
  for (std::size_t i = 0; i < finite.size(); i += stride) fewer.push_back(finite[i]);
  fewer.push_back(finite.back());
  return fewer;
}

struct Bounds {
  double last_step = 1;
  double low = 0;
  double high = 1;

  double x(double step) const { return kLeft + (kPageWidth - kLeft - kRight) * step / last_step; }
  double y(double loss) const {
    return kTop + (kPageHeight - kTop - kBottom) * (high - loss) / (high - low);
  }
};

Bounds bounds_of(const std::vector<CurvePoint>& train, const std::vector<CurvePoint>& validation) {
  Bounds bounds;
  bool first = true;
  for (const auto* points : {&train, &validation}) {
    for (const CurvePoint& point : *points) {
      bounds.last_step = std::max(bounds.last_step, point.step);
      bounds.low = first ? point.loss : std::min(bounds.low, point.loss);
      bounds.high = first ? point.loss : std::max(bounds.high, point.loss);
      first = false;
    }
  }
  if (bounds.high - bounds.low < 1e-9) bounds.high = bounds.low + 1;
  return bounds;
}

std::string axes(const Bounds& bounds) {
  std::string svg;
  for (const double mark : axis_marks(bounds.low, bounds.high, 6)) {
    svg += fmt::format(
        "<line x1='{}' y1='{:.1f}' x2='{}' y2='{:.1f}' class='grid'/>"
        "<text x='{}' y='{:.1f}' text-anchor='end'>{:g}</text>\n",
        kLeft, bounds.y(mark), kPageWidth - kRight, bounds.y(mark), kLeft - 8, bounds.y(mark) + 5,
        mark);
  }
  for (const double mark : axis_marks(0, bounds.last_step, 5)) {
    if (mark != std::floor(mark)) continue;  // there is no half step
    svg += fmt::format("<text x='{:.1f}' y='{}' text-anchor='middle'>{:g}</text>\n", bounds.x(mark),
                       kPageHeight - kBottom + 19, mark);
  }
  return svg + fmt::format("<text x='{}' y='{}' text-anchor='middle'>step</text>\n", kPageWidth / 2,
                           kPageHeight - 4);
}

std::string polyline(const std::vector<CurvePoint>& points, const Bounds& bounds,
                     std::string_view style) {
  if (points.empty()) return "";
  std::string places;
  for (const CurvePoint& point : points) {
    places += fmt::format("{:.1f},{:.1f} ", bounds.x(point.step), bounds.y(point.loss));
  }
  return fmt::format("<polyline class='{}' points='{}'/>\n", style, places);
}

std::string dots(const std::vector<CurvePoint>& points, const Bounds& bounds) {
  std::string svg;
  for (const CurvePoint& point : points) {
    svg += fmt::format("<circle class='validation' cx='{:.1f}' cy='{:.1f}' r='3.5'/>\n",
                       bounds.x(point.step), bounds.y(point.loss));
  }
  return svg;
}

std::string drawing(const Curve& curve) {
  const std::vector<CurvePoint> train = drawable(curve.train);
  const std::vector<CurvePoint> validation = drawable(curve.validation);
  const Bounds bounds = bounds_of(train, validation);
  return fmt::format(
             "<svg viewBox='0 0 {} {}' font-size='{}' role='img' aria-label='loss by "
             "step'>\n{}{}{}",
             kPageWidth, kPageHeight, kFontSize, axes(bounds), polyline(train, bounds, "train"),
             dots(validation, bounds)) +
         fmt::format(
             "<text x='{0}' y='{1}' text-anchor='end' class='train-key'>training loss</text>\n"
             "<text x='{0}' y='{2}' text-anchor='end' class='validation-key'>validation "
             "loss</text>\n",
             kPageWidth - kRight, kTop + 18, kTop + 38) +
         "</svg>\n";
}

constexpr std::string_view kPageStyle =
    "body{font:15px system-ui,sans-serif;max-width:680px;margin:2em auto;padding:0 1em;color:#222}"
    "svg{width:100%}.grid{stroke:#ddd}polyline{fill:none;stroke-width:1.6}"
    ".train{stroke:#1f6fb4}.validation{fill:#d9541e}.train-key{fill:#1f6fb4}"
    ".validation-key{fill:#d9541e}td{padding:.15em 1.2em .15em 0}"
    "pre{background:#f5f5f5;padding:1em;white-space:pre-wrap}";

}  // namespace

std::vector<double> axis_marks(double low, double high, int most) {
  const double rough = (high - low) / std::max(1, most);
  const double power = std::pow(10.0, std::floor(std::log10(std::max(rough, 1e-12))));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) {
      step = factor * power;
      break;
    }
  }
  std::vector<double> marks;
  const double first = std::ceil(low / step) * step;
  // Among numbers that are huge beside their distance a step may change nothing.
  for (int i = 0; i <= most + 1 && first + i * step <= high + step * 1e-9; ++i) {
    marks.push_back(first + i * step + 0.0);  // never "-0"
  }
  return marks;
}

std::string curve_page(const Curve& curve) {
  std::string facts;
  for (const auto& [name, value] : curve.facts) {
    facts += fmt::format("<tr><td>{}</td><td>{}</td></tr>\n", escaped(name), escaped(value));
  }
  const std::string sample =
      curve.sample.empty()
          ? ""
          : fmt::format("<h2>Sampled text</h2><pre>{}</pre>\n", escaped(curve.sample));
  return fmt::format(
      "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><title>{0}</title>\n"
      "<style>{1}</style></head>\n<body><h1>{0}</h1>\n{2}<table>\n{3}</table>\n{4}</body></html>\n",
      escaped(curve.title), kPageStyle, drawing(curve), facts, sample);
}

}  // namespace capstan::cli::train
