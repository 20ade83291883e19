"""Below all our packages: the version, how threads wait, and under which names the packages are imported."""
