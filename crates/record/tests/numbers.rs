//! Numbers that are stored as JSON come back as they were: resuming, replaying and comparing runs rest on it.

/// `serde_json` reads some numbers one unit off unless its feature `float_roundtrip` is on.
#[test]
fn every_double_comes_back() {
    let mut bits = 0x9e37_79b9_7f4a_7c15_u64;
    let mut numbers = 0;
    while numbers < 100_000 {
        bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let number = f64::from_bits(bits);
        if number.is_finite() {
            let text = serde_json::to_string(&number).unwrap();
            let back: f64 = serde_json::from_str(&text).unwrap();
            assert_eq!(back.to_bits(), number.to_bits(), "{text}");
            numbers += 1;
        }
    }
}
