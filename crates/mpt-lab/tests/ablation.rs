//! Paired runs of the simulator.

use mpt_lab::experiment::ablation::{Ablation, Set, cases};
use mpt_proto::tuning::Tuning;
use std::time::Duration;

#[test]
fn a_pair_with_the_same_tuning_has_a_ratio_of_exactly_one() {
    let mut few = Vec::new();
    for (set, seconds) in [(Set::Mixes, 1), (Set::Flows, 2), (Set::Latency, 3), (Set::Pages, 10)] {
        few.extend(cases(set, 2, Some(Duration::from_secs(seconds))).into_iter().take(2));
    }
    let comparison = Ablation::new(few, 2, 2).measure(Tuning::default(), &|_, _| ());
    let effects = &comparison.screened;
    // Each case of a mix and a page has one metric, two flows have two, and a call has three.
    assert_eq!(effects.len(), 2 * (1 + 2 + 3 + 1));
    for effect in effects {
        println!("{}/{} {}: {:?}", effect.set.name(), effect.case, effect.quantity.name, effect.with);
        assert_eq!(effect.ratio(), 1.0, "{effect:?}");
        assert_eq!(effect.log_ratios, [0.0; 2]);
        assert!(effect.with.iter().all(|value| *value > 0.0), "{effect:?}");
    }
    assert!(comparison.is_equal());
    let differing = effects.iter().filter(|effect| effect.with[0] != effect.with[1]).count();
    assert!(differing >= 12, "two seeds differ in nearly all: {differing} of {}", effects.len());
    let loads = effects.iter().filter(|effect| effect.set == Set::Pages).flat_map(|effect| &effect.with);
    assert!(loads.clone().count() == 4 && loads.into_iter().all(|time| *time < 10.0), "every page was loaded");
}
