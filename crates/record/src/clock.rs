//! Time by two clocks: the wall's, which people read and which may jump, and a steady one, which durations come from.

use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The two clocks may drift apart by this much between two looks before it counts as a jump: time servers slew a clock
/// by at most half a millisecond a second.
const JUMP_SECONDS: f64 = 2.0;
/// Jumps that are kept; a clock that jumps more often is broken, and the count says so.
const JUMPS_KEPT: usize = 100;

/// What both clocks showed at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// The wall clock.
    pub wall: SystemTime,
    /// The steady clock. It stands still while the machine sleeps, so a sleep looks like a jump of the wall clock.
    pub steady: Instant,
}

impl Reading {
    /// Now.
    pub fn now() -> Reading {
        Reading { wall: SystemTime::now(), steady: Instant::now() }
    }
}

/// The wall clock moved without the steady one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClockJump {
    /// Seconds after the start, by the steady clock.
    pub after_seconds: f64,
    /// Seconds that the wall clock moved beyond the steady one; negative when it was set back.
    pub by_seconds: f64,
}

/// Follows both clocks from a start.
#[derive(Clone, Debug)]
pub struct Clock {
    start: Reading,
    last: Reading,
    jumps: Vec<ClockJump>,
    jump_count: usize,
}

impl Clock {
    /// Starts at a reading.
    pub fn start(at: Reading) -> Clock {
        Clock { start: at, last: at, jumps: Vec::new(), jump_count: 0 }
    }

    /// Looks at both clocks again; notes a jump since the last look.
    pub fn look(&mut self, now: Reading) {
        let steady = now.steady.saturating_duration_since(self.last.steady);
        let by_seconds = signed_seconds(self.last.wall, now.wall) - steady.as_secs_f64();
        if by_seconds.abs() > JUMP_SECONDS {
            self.jump_count += 1;
            if self.jumps.len() < JUMPS_KEPT {
                let after = now.steady.saturating_duration_since(self.start.steady);
                self.jumps.push(ClockJump { after_seconds: after.as_secs_f64(), by_seconds });
            }
        }
        self.last = now;
    }

    /// Steady time from the start to the last look: never negative, whatever the wall clock does.
    pub fn elapsed(&self) -> Duration {
        self.last.steady.saturating_duration_since(self.start.steady)
    }

    /// The wall clock at the start, RFC 3339 in UTC.
    pub fn started(&self) -> String {
        rfc3339(self.start.wall)
    }

    /// The wall clock at the last look, RFC 3339 in UTC.
    pub fn looked(&self) -> String {
        rfc3339(self.last.wall)
    }

    /// The first jumps, and how many there were.
    pub fn jumps(&self) -> (&[ClockJump], usize) {
        (&self.jumps, self.jump_count)
    }
}

fn signed_seconds(from: SystemTime, to: SystemTime) -> f64 {
    match to.duration_since(from) {
        Ok(forward) => forward.as_secs_f64(),
        Err(back) => -back.duration().as_secs_f64(),
    }
}

/// A moment of the wall clock, RFC 3339 in UTC to the millisecond.
pub fn rfc3339(wall: SystemTime) -> String {
    match Timestamp::try_from(wall) {
        Ok(moment) => format!("{moment:.3}"),
        // The clock is set to a year that no calendar here knows; the run goes on.
        Err(_) => "unknown (the wall clock is out of range)".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(start: Reading, steady: f64, wall: f64) -> Reading {
        let moved = Duration::from_secs_f64(wall.abs());
        Reading {
            wall: if wall < 0.0 { start.wall - moved } else { start.wall + moved },
            steady: start.steady + Duration::from_secs_f64(steady),
        }
    }

    #[test]
    fn a_wall_clock_that_jumps_is_noted_and_durations_stay_true() {
        let start = Reading::now();
        let mut clock = Clock::start(start);
        clock.look(after(start, 10.0, 10.5));
        assert_eq!(clock.jumps(), (&[][..], 0));
        // Set back by an hour, then forward by two.
        clock.look(after(start, 20.0, 20.5 - 3600.0));
        clock.look(after(start, 30.0, 30.5 + 3600.0));
        let (jumps, count) = clock.jumps();
        assert_eq!(count, 2);
        let rounded: Vec<_> =
            jumps.iter().map(|j| (j.after_seconds.round(), j.by_seconds.round())).collect();
        assert_eq!(rounded, [(20.0, -3600.0), (30.0, 7200.0)]);
        assert_eq!(clock.elapsed(), Duration::from_secs(30));
    }

    #[test]
    fn drift_up_to_the_limit_is_no_jump_and_past_it_is() {
        let start = Reading::now();
        for (wall, jumps) in [(12.0, 0), (8.0, 0), (12.1, 1), (7.9, 1)] {
            let mut clock = Clock::start(start);
            clock.look(after(start, 10.0, wall));
            assert_eq!(clock.jumps().1, jumps, "{wall}");
        }
    }

    #[test]
    fn jumps_are_bounded_and_counted() {
        let start = Reading::now();
        let mut clock = Clock::start(start);
        for i in 1..=2 * JUMPS_KEPT {
            clock.look(after(start, i as f64, if i % 2 == 0 { 0.0 } else { 1e6 }));
        }
        let (kept, count) = clock.jumps();
        assert_eq!((kept.len(), count), (JUMPS_KEPT, 2 * JUMPS_KEPT));
    }

    #[test]
    fn times_are_written_in_utc() {
        let text = rfc3339(SystemTime::UNIX_EPOCH + Duration::from_millis(1_500));
        assert_eq!(text, "1970-01-01T00:00:01.500Z");
        let clock = Clock::start(Reading { wall: SystemTime::UNIX_EPOCH, steady: Instant::now() });
        assert_eq!(clock.started(), "1970-01-01T00:00:00.000Z");
        assert_eq!(clock.looked(), clock.started());
    }
}
