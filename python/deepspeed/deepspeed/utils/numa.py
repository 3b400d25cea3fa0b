"""Lists of cores."""


def parse_range(text):
    first, _, last = text.strip().partition("-")
    begin, end = int(first), int(last or first)
    if end < begin:
        raise ValueError(f"the range {text} ends before it begins")
    return list(range(begin, end + 1))


def parse_range_list(text):
    """"0,2-4" -> [0, 2, 3, 4]; numbers must grow."""
    found = []
    for part in text.split(","):
        for number in parse_range(part):
            if found and number <= found[-1]:
                raise ValueError("numbers in a list of ranges must be ascending")
            found.append(number)
    return found
