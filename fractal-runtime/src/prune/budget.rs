//! How much each layer of a model keeps: shapes, weights or error curves, and a keep ratio for all -> a ratio for each; or options of
//! known time and loss, and a time for all -> an option for each.

use super::PruneError;

/// A layer's loss when it alone keeps less: points of rising density, in (0, 1].
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Weights of the layer.
    pub elements: usize,
    /// (kept over all, loss).
    pub points: Vec<(f64, f64)>,
}

/// Erdos-Renyi: layer i keeps the part c (n + k) / (n k) of its weights, at most all, c the same for all (Mocanu et al., 2018; for
/// pruning Evci et al., RigL, 2020, appendix). Layers that share nothing but their sizes.
///
/// # Errors
/// [`PruneError::Budget`] for a ratio out of (0, 1], or a layer without weights.
pub fn erdos_renyi(shapes: &[(usize, usize)], keep: f64) -> Result<Vec<f64>, PruneError> {
    let elements: Vec<usize> = shapes.iter().map(|&(n, k)| n.saturating_mul(k)).collect();
    check(&elements, keep)?;
    let raw: Vec<f64> = shapes.iter().map(|&(n, k)| (n + k) as f64 / (n as f64 * k as f64)).collect();
    let total: f64 = elements.iter().map(|&e| e as f64).sum();
    let mut full = vec![false; shapes.len()];
    loop {
        // What the layers that keep all leave to the others.
        let of = |wanted: bool| elements.iter().zip(&full).filter(move |(_, full)| **full == wanted);
        let left = keep * total - of(true).map(|(&e, _)| e as f64).sum::<f64>();
        let scale: f64 =
            elements.iter().zip(&raw).zip(&full).filter(|(_, full)| !**full).map(|((&e, r), _)| e as f64 * r).sum();
        let part = if scale > 0.0 { left / scale } else { 0.0 };
        let more: Vec<usize> = (0..shapes.len()).filter(|&i| !full[i] && part * raw[i] > 1.0).collect();
        if more.is_empty() {
            return Ok((0..shapes.len()).map(|i| if full[i] { 1.0 } else { part * raw[i] }).collect());
        }
        more.into_iter().for_each(|i| full[i] = true);
    }
}

/// LAMP: a weight's score is its square over the sum of squares of all weights of its layer that are as large or larger; one threshold
/// over the scores of all layers tells what each keeps (Lee et al., Layer-adaptive sparsity for the magnitude-based pruning, 2021, eq. 2).
///
/// # Errors
/// [`PruneError::Budget`] for a ratio out of (0, 1], a layer without weights, or a weight that is not finite.
pub fn lamp(layers: &[&[f32]], keep: f64) -> Result<Vec<f64>, PruneError> {
    let elements: Vec<usize> = layers.iter().map(|layer| layer.len()).collect();
    check(&elements, keep)?;
    let mut scores: Vec<(f32, u32)> = Vec::with_capacity(elements.iter().sum());
    for (number, layer) in layers.iter().enumerate() {
        let mut squares: Vec<f64> = layer.iter().map(|&w| f64::from(w) * f64::from(w)).collect();
        if squares.iter().any(|s| !s.is_finite()) {
            return Err(PruneError::Budget { expected: "finite weights", found: format!("others in layer {number}") });
        }
        squares.sort_unstable_by(f64::total_cmp);
        let mut above: f64 = squares.iter().sum();
        for square in squares {
            let score = if above > 0.0 { square / above } else { 0.0 };
            scores.push((score as f32, number as u32));
            above -= square;
        }
    }
    let kept = ((keep * scores.len() as f64).round() as usize).clamp(1, scores.len());
    scores.select_nth_unstable_by(kept - 1, |a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut counts = vec![0usize; layers.len()];
    scores[..kept].iter().for_each(|&(_, layer)| counts[layer as usize] += 1);
    // A layer of which nothing is left passes nothing on.
    Ok(counts.iter().zip(&elements).map(|(&count, &all)| count.max(1) as f64 / all as f64).collect())
}

/// Ratios that keep as many weights in all, none above its layer's ceiling: what is cut off goes to the others in proportion.
///
/// # Errors
/// [`PruneError::Budget`] where lists are of different lengths, a number is no ratio, or the ceilings leave no room for it.
pub fn within_ceilings(ratios: &[f64], elements: &[usize], ceilings: &[f64]) -> Result<Vec<f64>, PruneError> {
    let (layers, all) = (ratios.len(), ratios.iter().chain(ceilings));
    if elements.len() != layers || ceilings.len() != layers || all.into_iter().any(|r| !(*r > 0.0 && *r <= 1.0)) {
        let (expected, found) = (
            "as many ratios above 0 and up to 1, sizes and ceilings",
            format!("{ratios:?}, {elements:?} and {ceilings:?}"),
        );
        return Err(PruneError::Budget { expected, found });
    }
    let kept = |ratios: &[f64]| ratios.iter().zip(elements).map(|(r, &e)| r * e as f64).sum::<f64>();
    let wanted = kept(ratios);
    if kept(ceilings) < wanted * (1.0 - 1e-9) {
        let found = format!("ceilings {ceilings:?} for {ratios:?}");
        return Err(PruneError::Budget { expected: "ceilings that leave room for what is kept in all", found });
    }
    let mut capped: Vec<bool> = vec![false; layers];
    let mut scale = 1.0;
    // Each turn caps one layer more, or ends.
    for _ in 0..=layers {
        let sum = |which: bool, of: &[f64]| -> f64 {
            (0..layers).filter(|&i| capped[i] == which).map(|i| of[i] * elements[i] as f64).sum()
        };
        let free = sum(false, ratios);
        scale = if free > 0.0 { (wanted - sum(true, ceilings)) / free } else { 1.0 };
        let over = (0..layers).find(|&i| !capped[i] && ratios[i] * scale > ceilings[i]);
        let Some(over) = over else { break };
        capped[over] = true;
    }
    Ok((0..layers).map(|i| if capped[i] { ceilings[i] } else { (ratios[i] * scale).min(ceilings[i]) }).collect())
}

/// The ratios of least total loss by the layers' curves, between `least` and each layer's `most`: of each curve's lower convex hull the
/// steepest parts are taken first.
///
/// # Errors
/// [`PruneError::Budget`] for ratios out of range or out of order, as many ceilings as there are no layers, ceilings that leave no room, a
/// layer without weights or points, or a point that is no number.
pub fn by_error(curves: &[Curve], keep: f64, least: f64, most: &[f64]) -> Result<Vec<f64>, PruneError> {
    let elements: Vec<usize> = curves.iter().map(|curve| curve.elements).collect();
    check(&elements, keep)?;
    let room: f64 = most.iter().zip(&elements).map(|(m, &e)| m * e as f64).sum();
    let total: f64 = elements.iter().map(|&e| e as f64).sum();
    let fits = most.len() == curves.len() && most.iter().all(|m| (least..=1.0).contains(m));
    if !(least > 0.0 && least <= keep && fits && room >= keep * total * (1.0 - 1e-9)) {
        let found = format!("{least}, {keep} and {most:?}");
        return Err(PruneError::Budget {
            expected: "0 < least <= keep, and of each layer least <= most <= 1, with room for keep",
            found,
        });
    }
    // (gain in loss a weight, layer, from, to), of hulls between the limits.
    let mut parts: Vec<(f64, usize, f64, f64)> = Vec::new();
    for (number, curve) in curves.iter().enumerate() {
        let wrong = |found: String| PruneError::Budget { expected: "points of rising density and finite loss", found };
        let finite = curve.points.iter().all(|p| p.0.is_finite() && p.1.is_finite());
        if curve.points.is_empty() || !finite || curve.points.windows(2).any(|w| w[0].0 >= w[1].0) {
            return Err(wrong(format!("{:?} of layer {number}", curve.points)));
        }
        let hull = hull(&within(&curve.points, least, most[number]));
        for pair in hull.windows(2) {
            let weights = (pair[1].0 - pair[0].0) * curve.elements as f64;
            parts.push(((pair[0].1 - pair[1].1) / weights, number, pair[0].0, pair[1].0));
        }
    }
    parts.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)).then(a.2.total_cmp(&b.2)));
    let mut left = (keep - least) * total;
    let mut ratios = vec![least; curves.len()];
    for (_, layer, from, to) in parts {
        let weights = (to - from) * elements[layer] as f64;
        let taken = (left / weights).clamp(0.0, 1.0);
        ratios[layer] = ratios[layer].max(from + taken * (to - from));
        left -= taken * weights;
        if left <= 0.0 {
            break;
        }
    }
    Ok(ratios)
}

/// One option of each layer, of least total loss among those that together take at most `most_time`: `layers` has of each its options
/// as (time, loss), times in any one unit. The result is an index into each layer's options.
///
/// This is the multiple-choice knapsack problem (Kellerer, Pferschy, Pisinger, Knapsack Problems, 2004, ch. 11), solved greedily: from
/// the fastest options on, the steps along the layers' lower convex hulls are taken by falling gain in loss for their time; then, as
/// long as one helps, the single exchange of an option that lowers the loss most and still fits, be it on a hull or not. The total time
/// is never above `most_time`; the loss is at most that of the problem's relaxation to mixed options, which is at most the optimum,
/// plus the loss that the largest single step of a hull gains. With s options of l layers: O(s (l + log s)) for the steps and for each
/// exchange; every one lowers the loss, so they end.
///
/// # Errors
/// [`PruneError::Budget`] for a layer without options, a number that is not finite, a negative time, or less time than the fastest options
/// take together.
pub fn by_time(layers: &[Vec<(f64, f64)>], most_time: f64) -> Result<Vec<usize>, PruneError> {
    let fits = |option: &(f64, f64)| option.0.is_finite() && option.0 >= 0.0 && option.1.is_finite();
    if let Some(at) = layers.iter().position(|options| options.is_empty() || !options.iter().all(fits)) {
        let found = format!("{:?} of layer {at}", layers[at]);
        return Err(PruneError::Budget { expected: "options of finite time, at least 0, and finite loss", found });
    }
    let hulls: Vec<Vec<usize>> = layers.iter().map(|options| fastest_to_best(options)).collect();
    let mut chosen: Vec<usize> = hulls.iter().map(|hull| hull[0]).collect();
    let time = |chosen: &[usize]| layers.iter().zip(chosen).map(|(options, &at)| options[at].0).sum::<f64>();
    let least = time(&chosen);
    if least.is_nan() || most_time.is_nan() || least > most_time {
        let found = format!("{most_time} for {least}");
        return Err(PruneError::Budget { expected: "time for at least the fastest options together", found });
    }
    // An exchange, where there is time for it.
    let exchange = |chosen: &mut Vec<usize>, layer: usize, option: usize| {
        let old = std::mem::replace(&mut chosen[layer], option);
        let fits = time(chosen) <= most_time;
        if !fits {
            chosen[layer] = old;
        }
        fits
    };
    // (gain in loss a unit of time, layer, place on its hull).
    let mut steps: Vec<(f64, usize, usize)> = Vec::new();
    for (layer, (options, hull)) in layers.iter().zip(&hulls).enumerate() {
        for (place, pair) in hull.windows(2).enumerate() {
            let (from, to) = (options[pair[0]], options[pair[1]]);
            steps.push(((from.1 - to.1) / (to.0 - from.0), layer, place + 1));
        }
    }
    steps.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)));
    let mut ended = vec![false; layers.len()];
    for (_, layer, place) in steps {
        // A step that finds no time ends its layer: those behind it begin where it would have led.
        ended[layer] = ended[layer] || !exchange(&mut chosen, layer, hulls[layer][place]);
    }
    loop {
        let all = layers.iter().enumerate().flat_map(|(layer, options)| (0..options.len()).map(move |at| (layer, at)));
        let gain = |&(layer, at): &(usize, usize)| layers[layer][chosen[layer]].1 - layers[layer][at].1;
        let mut better: Vec<(usize, usize)> = all.filter(|one| gain(one) > 0.0).collect();
        better.sort_by(|a, b| gain(b).total_cmp(&gain(a)).then(a.cmp(b)));
        if !better.into_iter().any(|(layer, at)| exchange(&mut chosen, layer, at)) {
            return Ok(chosen);
        }
    }
}

/// The options on the lower convex hull, from the fastest to that of least loss: times rise, losses fall.
fn fastest_to_best(options: &[(f64, f64)]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..options.len()).collect();
    order.sort_by(|&a, &b| options[a].0.total_cmp(&options[b].0).then(options[a].1.total_cmp(&options[b].1)));
    let mut left: Vec<usize> = Vec::new();
    for at in order {
        if left.last().is_none_or(|&last| options[at].1 < options[last].1) {
            left.push(at);
        }
    }
    let points: Vec<(f64, f64)> = left.iter().map(|&at| options[at]).collect();
    let corners = hull(&points);
    left.retain(|&at| corners.contains(&options[at]));
    left
}

/// The points between the limits, with the limits themselves by straight lines.
fn within(points: &[(f64, f64)], least: f64, most: f64) -> Vec<(f64, f64)> {
    let at = |x: f64| {
        let above = points.iter().position(|p| p.0 >= x);
        match above {
            Some(0) => points[0].1,
            None => points[points.len() - 1].1,
            Some(i) => {
                let (a, b) = (points[i - 1], points[i]);
                a.1 + (b.1 - a.1) * (x - a.0) / (b.0 - a.0)
            }
        }
    };
    let mut inside = vec![(least, at(least))];
    inside.extend(points.iter().copied().filter(|p| p.0 > least && p.0 < most));
    if most > least {
        inside.push((most, at(most)));
    }
    inside
}

/// The lower convex hull of points of rising x.
fn hull(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut hull: Vec<(f64, f64)> = Vec::new();
    for &p in points {
        while let [.., a, b] = hull[..] {
            if (b.1 - a.1) * (p.0 - a.0) >= (p.1 - a.1) * (b.0 - a.0) {
                hull.pop();
            } else {
                break;
            }
        }
        hull.push(p);
    }
    hull
}

fn check(elements: &[usize], keep: f64) -> Result<(), PruneError> {
    if !(keep > 0.0 && keep <= 1.0) {
        return Err(PruneError::Budget { expected: "a keep ratio above 0 and up to 1", found: keep.to_string() });
    }
    match elements.iter().position(|&e| e == 0) {
        Some(at) => {
            Err(PruneError::Budget { expected: "layers of at least one weight", found: format!("none in layer {at}") })
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kept(elements: &[usize], ratios: &[f64]) -> f64 {
        let kept: f64 = elements.iter().zip(ratios).map(|(&e, r)| e as f64 * r).sum();
        kept / elements.iter().sum::<usize>() as f64
    }

    #[test]
    fn narrow_layers_keep_more_by_their_shapes() {
        let shapes = [(16, 16), (64, 64), (256, 64)];
        let ratios = erdos_renyi(&shapes, 0.25).unwrap();
        assert!((kept(&[256, 4096, 16384], &ratios) - 0.25).abs() < 1e-9, "{ratios:?}");
        // The first would keep more than all: the others share what is left as (n + k) / (n k), here 8 to 5.
        assert_eq!(ratios[0], 1.0);
        assert!((ratios[1] / ratios[2] - (128.0 / 4096.0) / (320.0 / 16384.0)).abs() < 1e-9, "{ratios:?}");
        assert_eq!(erdos_renyi(&shapes, 1.0).unwrap(), [1.0; 3]);
    }

    #[test]
    fn one_threshold_of_lamp_scores_tells_layers_apart() {
        // Scores of 3, 4: 9/25, 1; of 1, 1, 2: 1/6, 1/5, 1.
        let ratios = lamp(&[&[3.0, -4.0], &[1.0, -2.0, 1.0]], 0.6).unwrap();
        assert_eq!(ratios, [1.0, 1.0 / 3.0]);
        // Every layer keeps its greatest, whose score is 1.
        assert_eq!(lamp(&[&[3.0, 4.0], &[0.1, 0.2]], 0.5).unwrap(), [0.5, 0.5]);
        assert_eq!(lamp(&[&[0.0, 0.0], &[1.0, 1.0]], 0.5).unwrap(), [0.5, 1.0]);
        assert!(lamp(&[&[f32::NAN]], 0.5).unwrap_err().to_string().contains("finite weights"));
    }

    #[test]
    fn layers_that_lose_more_keep_more() {
        let curve = |scale: f64, elements| Curve {
            elements,
            points: [0.125, 0.25, 0.5, 1.0].iter().map(|&x: &f64| (x, scale * (1.0 - x).powi(2))).collect(),
        };
        let curves = [curve(1.0, 1000), curve(4.0, 1000), curve(1.0, 2000)];
        let ratios = by_error(&curves, 0.4, 0.125, &vec![1.0; curves.len()]).unwrap();
        assert!((kept(&[1000, 1000, 2000], &ratios) - 0.4).abs() < 1e-9, "{ratios:?}");
        assert!(ratios[1] > ratios[0] && ratios[0] > ratios[2], "{ratios:?}");
        // Nothing of the same size is better, by steps of a hundredth from layer to layer.
        let loss = |r: &[f64]| {
            let at = |c: &Curve, x: f64| hull(&within(&c.points, x.min(0.999), 1.0))[0].1;
            curves.iter().zip(r).map(|(c, &x)| at(c, x)).sum::<f64>()
        };
        for (from, to) in [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)] {
            if ratios[from] <= 0.125 || ratios[to] >= 1.0 {
                continue;
            }
            let mut other = ratios.clone();
            other[from] -= 10.0 / curves[from].elements as f64;
            other[to] += 10.0 / curves[to].elements as f64;
            assert!(loss(&other) >= loss(&ratios) - 1e-9, "{from} to {to}");
        }
        assert_eq!(by_error(&curves, 0.5, 0.5, &[1.0; 3]).unwrap(), [0.5; 3]);
        let same = by_error(&curves, 0.3, 0.3, &[0.3; 3]).unwrap();
        assert_eq!(same, [0.3; 3]);
    }

    #[test]
    fn what_ceilings_cut_off_goes_to_the_others() {
        let sum = |ratios: &[f64], elements: &[usize]| -> f64 {
            ratios.iter().zip(elements).map(|(r, &e)| r * e as f64).sum()
        };
        let (ratios, elements) = ([0.8, 0.4, 0.2], [100, 200, 400]);
        let found = within_ceilings(&ratios, &elements, &[0.5, 0.45, 1.0]).unwrap();
        assert_eq!(found[0], 0.5);
        assert!(found[1] <= 0.45 && (sum(&found, &elements) - sum(&ratios, &elements)).abs() < 1e-9, "{found:?}");
        // 240 in all, 50 and 90 at the ceilings.
        assert!((found[1] - 0.45).abs() < 1e-9 && (found[2] - 0.25).abs() < 1e-9, "{found:?}");
        assert_eq!(within_ceilings(&ratios, &elements, &[1.0; 3]).unwrap(), ratios);
        for (ratios, ceilings) in
            [(&ratios[..], &[0.3; 3][..]), (&ratios, &[1.0; 2]), (&[0.8, f64::NAN, 0.2], &[1.0; 3])]
        {
            assert!(within_ceilings(ratios, &elements, ceilings).is_err(), "{ratios:?} {ceilings:?}");
        }
    }

    fn sums(layers: &[Vec<(f64, f64)>], chosen: &[usize]) -> (f64, f64) {
        let options = || layers.iter().zip(chosen).map(|(options, &at)| options[at]);
        (options().map(|option| option.0).sum(), options().map(|option| option.1).sum())
    }

    #[test]
    fn time_goes_where_it_saves_most() {
        // Dense first. The second layer loses nothing by being fast.
        let layers = vec![vec![(10.0, 0.0), (5.0, 0.2), (4.0, 0.9)], vec![(10.0, 0.0), (4.0, 0.01)]];
        assert_eq!(by_time(&layers, 20.0).unwrap(), [0, 0]);
        assert_eq!(by_time(&layers, 14.0).unwrap(), [0, 1]);
        assert_eq!(by_time(&layers, 10.0).unwrap(), [1, 1]);
        assert_eq!(by_time(&layers, 8.0).unwrap(), [2, 1]);
        let error = by_time(&layers, 7.5).unwrap_err().to_string();
        assert!(error.ends_with("expected time for at least the fastest options together, found 7.5 for 8"), "{error}");
        // As slow as another and worse: never.
        assert_eq!(by_time(&[vec![(1.0, 0.5), (1.0, 0.25), (2.0, 0.3)]], 3.0).unwrap(), [1]);
        assert_eq!(by_time(&[], 0.0).unwrap(), [0usize; 0]);
    }

    #[test]
    fn options_inside_a_hull_use_what_time_is_left() {
        // The middle one is above the line from the first to the last, for which there is no time.
        let layers = vec![vec![(2.0, 1.0), (6.0, 0.7), (10.0, 0.0)]];
        assert_eq!(fastest_to_best(&layers[0]), [0, 2]);
        assert_eq!(by_time(&layers, 9.0).unwrap(), [1]);
        // A step that does not fit leaves its time to another layer's.
        let layers = vec![vec![(1.0, 1.0), (9.0, 0.0)], vec![(1.0, 0.1), (3.0, 0.0)]];
        assert_eq!(by_time(&layers, 9.0).unwrap(), [0, 1]);
    }

    proptest::proptest! {
        #[test]
        fn choices_by_time_are_near_the_best(
            layers in proptest::collection::vec(
                proptest::collection::vec((0u32..40, 0u32..40).prop_map(|(t, l)| (f64::from(t) / 3.0, f64::from(l) / 7.0)), 1..=4),
                1..=4,
            ),
            part in 0.0..1.2f64,
        ) {
            let time_of = |pick: fn(f64, f64) -> f64| -> f64 {
                layers.iter().map(|options| options.iter().map(|o| o.0).reduce(pick).unwrap()).sum()
            };
            let (fastest, slowest) = (time_of(f64::min), time_of(f64::max));
            let most = fastest + part * (slowest - fastest);
            // Every choice.
            let mut best: Option<f64> = None;
            for code in 0..4usize.pow(layers.len() as u32) {
                let chosen: Vec<usize> = (0..layers.len()).map(|at| code / 4usize.pow(at as u32) % 4).collect();
                if chosen.iter().zip(&layers).all(|(&at, options)| at < options.len()) {
                    let (time, loss) = sums(&layers, &chosen);
                    best = if time <= most { Some(best.map_or(loss, |b| b.min(loss))) } else { best };
                }
            }
            let largest = layers.iter().flat_map(|options| {
                let losses: Vec<f64> = fastest_to_best(options).into_iter().map(|at| options[at].1).collect();
                losses.windows(2).map(|pair| pair[0] - pair[1]).collect::<Vec<_>>()
            }).fold(0.0, f64::max);
            match (by_time(&layers, most), best) {
                (Ok(chosen), Some(best)) => {
                    let (time, loss) = sums(&layers, &chosen);
                    prop_assert!(time <= most, "{} above {}", time, most);
                    prop_assert!(loss >= best - 1e-9 && loss <= best + largest + 1e-9, "{} for {}", loss, best);
                }
                (Err(_), None) => {}
                (found, best) => prop_assert!(false, "{:?} for {:?}", found, best),
            }
        }
    }

    #[test]
    fn what_is_no_budget_is_told() {
        for options in [vec![], vec![(f64::NAN, 0.0)], vec![(1.0, f64::INFINITY)], vec![(-1.0, 0.0)]] {
            let error = by_time(&[vec![(1.0, 0.0)], options], 9.0).unwrap_err().to_string();
            assert!(error.contains("finite loss") && error.contains("of layer 1"), "{error}");
        }
        assert!(by_time(&[vec![(1.0, 0.0)]], f64::NAN).is_err());
        assert!(erdos_renyi(&[(0, 4)], 0.5).unwrap_err().to_string().contains("none in layer 0"));
        assert!(erdos_renyi(&[(4, 4)], 1.5).unwrap_err().to_string().contains("found 1.5"));
        let curve = Curve { elements: 4, points: vec![(0.5, 1.0), (0.5, 0.0)] };
        assert!(by_error(&[curve], 0.5, 0.1, &[1.0]).unwrap_err().to_string().contains("rising density"));
        let curve = Curve { elements: 4, points: vec![(0.5, 1.0)] };
        assert!(by_error(&[curve], 0.5, 0.6, &[1.0]).unwrap_err().to_string().contains("least <= keep"));
    }
}
