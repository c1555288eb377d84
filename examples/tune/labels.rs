//! Labels of points -> places for them: none above another, none outside the field, few above points and lines.

/// Upright, the top at the least y; without width or height it is a line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Area {
    pub left: f64,
    pub top: f64,
    pub right: f64,
    pub bottom: f64,
}

impl Area {
    fn meets(&self, other: &Area) -> bool {
        self.left < other.right && other.left < self.right && self.top < other.bottom && other.top < self.bottom
    }

    fn inside(&self, field: &Area) -> bool {
        self.left >= field.left && self.right <= field.right && self.top >= field.top && self.bottom <= field.bottom
    }

    fn contains(&self, (x, y): (f64, f64)) -> bool {
        self.left < x && x < self.right && self.top < y && y < self.bottom
    }

    fn grown(&self, by: f64) -> Area {
        Area { left: self.left - by, top: self.top - by, right: self.right + by, bottom: self.bottom + by }
    }
}

/// A text that belongs to a point.
pub struct Label {
    pub text: String,
    pub class: &'static str,
    /// The point.
    pub at: (f64, f64),
    /// Bold, and the point has a ring.
    pub strong: bool,
}

impl Label {
    pub fn new(text: String, class: &'static str, at: (f64, f64)) -> Label {
        Label { text, class, at, strong: false }
    }

    /// Wide enough for sans-serif letters of 11 pixels.
    fn size(&self) -> (f64, f64) {
        let letter = if self.strong { 7.6 } else { 6.6 };
        (letter * self.text.chars().count() as f64 + 2.0, 13.0)
    }
}

/// Where a label is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    area: Area,
    /// Where a line from the point to the label ends, if they are far apart.
    pub leader: Option<(f64, f64)>,
}

impl Place {
    /// Where the text begins.
    pub fn baseline(&self) -> (f64, f64) {
        (self.area.left + 1.0, self.area.bottom - 3.0)
    }
}

/// Directions from the point, the best first.
const DIRECTIONS: [(f64, f64); 12] = [
    (1.0, 0.0),
    (0.7, -0.7),
    (0.7, 0.7),
    (-1.0, 0.0),
    (-0.7, -0.7),
    (-0.7, 0.7),
    (0.0, -1.0),
    (0.0, 1.0),
    (0.9, -0.4),
    (0.9, 0.4),
    (-0.9, -0.4),
    (-0.9, 0.4),
];
/// Pixels from the point.
const DISTANCES: [f64; 5] = [8.0, 16.0, 28.0, 44.0, 64.0];
/// From this distance on, a line leads to the label.
const FAR: f64 = 16.0;

/// The place of each label, the first ones chosen first; `None` where there is no room.
pub fn place(labels: &[Label], dots: &[(f64, f64)], lines: &[Area], field: Area) -> Vec<Option<Place>> {
    let mut taken: Vec<Area> = Vec::new();
    // Points of lines from points to labels.
    let mut leaders: Vec<(f64, f64)> = Vec::new();
    let mut places = Vec::new();
    for label in labels {
        let mut best: Option<(f64, Place)> = None;
        for distance in DISTANCES {
            for (number, direction) in DIRECTIONS.into_iter().enumerate() {
                let place = beside(label, direction, distance + if label.strong { 6.0 } else { 0.0 });
                let room = place.area.grown(1.0);
                let free = taken.iter().all(|area| !area.meets(&room))
                    && !leaders.iter().any(|at| room.contains(*at))
                    && !along(label, &place).any(|at| taken.iter().any(|area| area.contains(at)));
                if !free || !place.area.inside(&field) {
                    continue;
                }
                let near = place.area.grown(4.0);
                let covered = dots.iter().filter(|dot| near.contains(**dot) && label.at != **dot).count();
                let crossed = lines.iter().filter(|line| line.grown(0.5).meets(&place.area)).count();
                let others = || dots.iter().filter(|dot| **dot != label.at);
                let touched = along(label, &place).any(|at| others().any(|dot| near_by(at, *dot)));
                let covered = covered + usize::from(touched);
                let cost = distance + number as f64 + 40.0 * covered as f64 + 20.0 * crossed as f64;
                if best.is_none_or(|(least, _)| cost < least) {
                    best = Some((cost, place));
                }
            }
        }
        let place = best.map(|(_, place)| place);
        taken.extend(place.map(|place| place.area));
        leaders.extend(place.iter().flat_map(|place| along(label, place)));
        places.push(place);
    }
    places
}

/// Whether a line through `a` touches the mark at `b`.
fn near_by(a: (f64, f64), b: (f64, f64)) -> bool {
    (a.0 - b.0).hypot(a.1 - b.1) < 5.0
}

/// Points of the line to the label, a few pixels apart.
fn along(label: &Label, place: &Place) -> impl Iterator<Item = (f64, f64)> {
    let (from, to) = (label.at, place.leader);
    let point = move |part: u32| {
        let (x, y) = to?;
        let part = f64::from(part) / 20.0;
        Some((from.0 + part * (x - from.0), from.1 + part * (y - from.1)))
    };
    (0..20).filter_map(point)
}

fn beside(label: &Label, (x, y): (f64, f64), distance: f64) -> Place {
    let (width, height) = label.size();
    let end = (label.at.0 + x * distance, label.at.1 + y * distance);
    let left = match x {
        x if x > 0.1 => end.0,
        x if x < -0.1 => end.0 - width,
        _ => end.0 - width / 2.0,
    };
    let top = match y {
        y if y > 0.5 => end.1,
        y if y < -0.5 => end.1 - height,
        _ => end.1 - height / 2.0,
    };
    let area = Area { left, top, right: left + width, bottom: top + height };
    Place { area, leader: (distance >= if label.strong { FAR + 6.0 } else { FAR }).then_some(end) }
}
