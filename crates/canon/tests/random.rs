//! Counter-based random numbers.

use canon::random::{Numbers, Purpose, philox4x32};

/// `philox4x32 10` of Random123's `kat_vectors`.
#[test]
fn known_answers() {
    let ones = 0xffff_ffff;
    assert_eq!(philox4x32([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
    assert_eq!(
        philox4x32([ones; 4], [ones; 2]),
        [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
    );
    assert_eq!(
        philox4x32(
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xa409_3822, 0x299f_31d0]
        ),
        [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
    );
}

#[test]
fn uniforms_fill_the_interval() {
    let numbers = Numbers::new(1, Purpose::Sample, 3);
    let n = 100_000;
    let mut buckets = [0u32; 16];
    for i in 0..n {
        let u = numbers.uniform(i);
        assert!((0.0..1.0).contains(&u));
        buckets[(u * 16.0) as usize] += 1;
    }
    // 6250 expected a bucket; the standard deviation is 77.
    for count in buckets {
        assert!(count.abs_diff(6250) < 400, "{buckets:?}");
    }
}

#[test]
fn normals_have_their_moments() {
    let numbers = Numbers::new(2, Purpose::Init, 0);
    let mut values = vec![0.0f32; 200_000];
    numbers.fill_normal(0, 0.5, &mut values);
    let n = values.len() as f64;
    let moment = |k| values.iter().map(|&x| f64::from(x).powi(k)).sum::<f64>() / n;
    assert!(moment(1).abs() < 0.005, "{}", moment(1));
    assert!((moment(2) - 0.25).abs() < 0.005, "{}", moment(2));
    assert!(moment(3).abs() < 0.005, "{}", moment(3));
    assert!((moment(4) - 3.0 / 16.0).abs() < 0.01, "{}", moment(4));
    assert!(values.iter().all(|x| x.is_finite()));
}

#[test]
fn a_part_has_the_values_of_the_whole() {
    let numbers = Numbers::new(3, Purpose::Init, 11);
    let (mut normal, mut uniform) = ([0.0f32; 64], [0.0f32; 64]);
    numbers.fill_normal(0, 1.0, &mut normal);
    numbers.fill_uniform(0, -0.25, 0.75, &mut uniform);
    assert!(uniform.iter().all(|u| (-0.25..=0.75).contains(u)));
    for first in 0..64 {
        for end in first..=64 {
            let mut part = vec![0.0; end - first];
            numbers.fill_normal(first as u64, 1.0, &mut part);
            assert_eq!(part, normal[first..end]);
            numbers.fill_uniform(first as u64, -0.25, 0.75, &mut part);
            assert_eq!(part, uniform[first..end]);
        }
    }
}

#[test]
fn every_part_of_the_name_counts() {
    let block = |seed, purpose, stream, index| Numbers::new(seed, purpose, stream).block(index);
    let mut blocks = vec![
        block(0, Purpose::Init, 0, 0),
        block(1, Purpose::Init, 0, 0),
        block(1 << 32, Purpose::Init, 0, 0),
        block(0, Purpose::Sample, 0, 0),
        block(0, Purpose::Order, 0, 0),
        block(0, Purpose::Dropout, 0, 0),
        block(0, Purpose::Init, 1, 0),
        block(0, Purpose::Init, 1 << 32, 0),
        block(0, Purpose::Init, 0, 1),
        block(0, Purpose::Init, 0, 1 << 32),
    ];
    let all = blocks.len();
    blocks.sort_unstable();
    blocks.dedup();
    assert_eq!(blocks.len(), all);
}

#[test]
fn below_and_shuffle() {
    let numbers = Numbers::new(5, Purpose::Order, 0);
    let mut seen = [0u32; 7];
    for i in 0..7000 {
        seen[numbers.below(i, 7) as usize] += 1;
    }
    assert!(seen.iter().all(|&n| n.abs_diff(1000) < 200), "{seen:?}");
    assert_eq!(numbers.below(0, 0), 0);
    assert!(numbers.below(0, u64::MAX) > u64::from(u32::MAX));
    let mut items: Vec<u32> = (0..1000).collect();
    numbers.shuffle(&mut items);
    assert_ne!(items, (0..1000).collect::<Vec<_>>());
    items.sort_unstable();
    assert_eq!(items, (0..1000).collect::<Vec<_>>());
    numbers.shuffle::<u32>(&mut []);
}

/// Adapters are initialised and tokens are sampled from these: their bits are
/// part of the identity of a run.
#[test]
fn golden_bits() {
    let mut normal = [0.0f32; 6];
    Numbers::new(42, Purpose::Init, 1).fill_normal(0, 1.0, &mut normal);
    let mut uniform = [0.0f32; 3];
    Numbers::new(42, Purpose::Init, 1).fill_uniform(0, -1.0, 1.0, &mut uniform);
    let found: Vec<u32> = normal.iter().chain(&uniform).map(|x| x.to_bits()).collect();
    let golden: [u32; 9] = [
        0xbf95_3a13,
        0xbec6_11bc,
        0xbed4_4e79,
        0x3f0f_6c6e,
        0xbf08_27b8,
        0xbef0_f762,
        0xbd73_6a20,
        0x3dd0_dd20,
        0x3f11_952e,
    ];
    assert_eq!(found, golden, "{found:#x?}");
}
