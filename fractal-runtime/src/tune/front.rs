//! Records -> those that no other beats in both importance kept and time.

use super::record::Record;
use std::cmp::Ordering;

/// The Pareto front of timed records: more retained is better, fewer microseconds are better. Sorted by retained,
/// greatest first, so the fastest is the last; of records with the same two numbers, the first given.
pub fn front(records: impl IntoIterator<Item = Record>) -> Vec<Record> {
    let point = |record: Record| {
        let microseconds = record.microseconds()?;
        // What cannot be compared beats nothing.
        (!microseconds.is_nan() && !record.retained.is_nan()).then_some((microseconds, record))
    };
    let mut points: Vec<(f64, Record)> = records.into_iter().filter_map(point).collect();
    points.sort_by(|(a_time, a), (b_time, b)| {
        let retained = b.retained.partial_cmp(&a.retained).unwrap_or(Ordering::Equal);
        retained.then(a_time.partial_cmp(b_time).unwrap_or(Ordering::Equal))
    });
    // Everything before a point retains as much: it stays only if it is faster than all of that.
    let mut least = None;
    points.retain(|(time, _)| {
        let faster = least.is_none_or(|least| *time < least);
        if faster {
            least = Some(*time);
        }
        faster
    });
    points.into_iter().map(|(_, record)| record).collect()
}

#[cfg(test)]
mod tests {
    use super::super::record::{Context, Outcome};
    use super::*;
    use fractal_dsl::{DType, Layout};
    use fractal_sched::KernelRequest;
    use proptest::prelude::*;

    fn record(retained: f64, microseconds: Option<f64>) -> Record {
        let context = Context {
            fractal: "0.1.0".into(),
            device: "cpu".into(),
            versions: String::new(),
            dtype: DType::F32,
            n: 64,
            k: 64,
            m: 1,
            epilogue: Vec::new(),
            layouts: (Layout::FeatureMajor, Layout::FeatureMajor),
            weights: String::new(),
        };
        let outcome = match microseconds {
            Some(microseconds) => Outcome::Timed { microseconds, kernel: "k".into(), error: 0.0 },
            None => Outcome::Failed { reason: "none".into() },
        };
        let request = KernelRequest::default();
        Record { context, pattern: Vec::new(), request, retained, density: 0.5, expected: 1.0, outcome }
    }

    /// Retained and microseconds.
    fn point(record: &Record) -> (f64, f64) {
        (record.retained, record.microseconds().expect("a front holds timed records"))
    }

    /// At least as good in both and better in one, by the definition.
    fn dominates(a: (f64, f64), b: (f64, f64)) -> bool {
        a.0 >= b.0 && a.1 <= b.1 && a != b
    }

    /// A few values, so that ties are common, and any others.
    fn number() -> impl Strategy<Value = f64> {
        prop_oneof![
            4 => (0u8..6).prop_map(f64::from),
            1 => 0.0..6.0,
            1 => prop::sample::select(vec![-0.0, f64::INFINITY, f64::NAN]),
        ]
    }

    proptest! {
        #[test]
        fn no_member_is_dominated_and_every_other_record_is_dominated_or_equal(
            numbers in prop::collection::vec((number(), prop::option::weighted(0.9, number())), 0..24),
        ) {
            let records: Vec<Record> = numbers.iter().map(|&(retained, time)| record(retained, time)).collect();
            let found = front(records.clone());
            let members: Vec<_> = found.iter().map(point).collect();
            for (i, &a) in members.iter().enumerate() {
                for (j, &b) in members.iter().enumerate() {
                    prop_assert!(i == j || !dominates(a, b) && a != b, "{a:?}, {b:?}");
                }
            }
            prop_assert!(members.windows(2).all(|pair| pair[0].0 > pair[1].0), "{members:?}");
            prop_assert!(found.iter().all(|member| records.contains(member)));
            for other in records.iter().filter(|record| record.microseconds().is_some()).map(point) {
                let comparable = !other.0.is_nan() && !other.1.is_nan();
                let beaten = members.iter().any(|&member| member == other || dominates(member, other));
                prop_assert_eq!(beaten, comparable, "{:?} and {:?}", other, members);
            }
        }
    }

    #[test]
    fn of_nothing_timed_there_is_no_front() {
        assert_eq!(front([]), []);
        assert_eq!(front([record(1.0, None)]), []);
    }

    #[test]
    fn the_slower_and_poorer_and_the_twins_are_left_out() {
        let records = [(0.5, 1.0), (1.0, 4.0), (0.5, 1.0), (0.9, 4.0), (0.8, 2.0), (1.0, 5.0)];
        let found = front(records.map(|(retained, time)| record(retained, Some(time))));
        assert_eq!(found.iter().map(point).collect::<Vec<_>>(), [(1.0, 4.0), (0.8, 2.0), (0.5, 1.0)]);
    }
}
