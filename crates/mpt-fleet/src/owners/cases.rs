//! Single decisions.

use super::*;

fn key() -> Key {
    "sHPDD7Vu50boeUMKXgJe7lrDM/vVYbodEmjG4KDHYSQ=".parse().unwrap()
}

fn id(index: u8) -> ServerId {
    ServerId::new(index + 1).unwrap()
}

fn claim(server: u8, timestamp: u128, turn: u32, written: u64) -> Option<Record> {
    Some(Record { claim: Some(Claim { server: id(server), token: Token { timestamp, turn } }), written, lease: 9 })
}

fn write(expected: u64, token: Option<(u128, u32)>) -> Option<Act> {
    let claim = token.map(|(timestamp, turn)| (Claim { server: id(0), token: Token { timestamp, turn } }, 5));
    Some(Act::Write { key: key(), expected, claim })
}

/// Returns server 1 with a lease.
fn first() -> Owners {
    let mut owners = Owners::new(id(0));
    owners.handle_lease(Some(5));
    owners
}

#[test]
fn a_later_handshake_takes_the_record_and_an_earlier_one_ends_after_a_while() {
    let mut owners = first();
    owners.handle_record(&key(), 7, claim(1, 100, 0, 7));
    owners.handle_up(&key(), 101, true);
    assert_eq!(owners.poll_act(), write(7, Some((101, 0))));
    let mut owners = first();
    owners.handle_record(&key(), 7, claim(1, 100, 0, 7));
    owners.handle_up(&key(), 99, true);
    (1..PATIENCE).for_each(|_| owners.handle_tick());
    assert_eq!(owners.poll_act(), None);
    owners.handle_tick();
    assert_eq!(owners.poll_act(), Some(Act::Remove { key: key(), owner: id(1) }));
}

#[test]
fn a_site_that_turns_to_its_reserve_moves_the_record_at_once_though_the_other_handshake_is_later() {
    let mut owners = first();
    owners.handle_record(&key(), 7, claim(1, 100, 3, 7));
    owners.handle_up(&key(), 5, false);
    assert_eq!(owners.poll_act(), None);
    owners.handle_up(&key(), 5, true);
    assert_eq!(owners.poll_act(), write(7, Some((100, 4))));
}

#[test]
fn the_record_is_given_up_with_the_session_and_taken_when_another_gives_it_up() {
    for ends in
        [|owners: &mut Owners| owners.handle_down(&key()), |owners: &mut Owners| owners.handle_up(&key(), 100, false)]
    {
        let mut owners = first();
        owners.handle_up(&key(), 100, true);
        assert_eq!(owners.poll_act(), write(0, Some((100, 0))));
        owners.handle_result(&key(), Some((8, claim(0, 100, 0, 8).map(|record| Record { lease: 5, ..record }))));
        assert_eq!(owners.poll_act(), None);
        ends(&mut owners);
        assert_eq!(owners.poll_act(), write(8, None));
    }
    let mut owners = first();
    owners.handle_record(&key(), 7, claim(1, 101, 0, 7));
    owners.handle_up(&key(), 100, true);
    owners.handle_record(&key(), 8, None);
    assert_eq!(owners.poll_act(), write(0, Some((100, 0))));
}

#[test]
fn without_a_lease_nothing_is_taken_and_no_session_ends() {
    let mut owners = Owners::new(id(0));
    owners.handle_record(&key(), 7, claim(1, 101, 0, 7));
    owners.handle_up(&key(), 100, true);
    (0..10).for_each(|_| owners.handle_tick());
    assert_eq!(owners.poll_act(), None);
}

#[test]
fn a_session_whose_path_returns_moves_the_record_back_and_an_equal_claim_does_not() {
    let mut owners = first();
    owners.handle_up(&key(), 100, true);
    owners.handle_down(&key());
    while owners.poll_act().is_some() {}
    owners.handle_result(&key(), Some((8, None)));
    owners.handle_record(&key(), 9, claim(1, 100, 1, 9));
    owners.handle_up(&key(), 100, true);
    assert_eq!(owners.poll_act(), write(9, Some((100, 2))));
    let mut owners = first();
    owners.handle_record(&key(), 7, claim(1, 100, 0, 7));
    owners.handle_up(&key(), 100, true);
    assert_eq!(owners.poll_act(), None);
}
