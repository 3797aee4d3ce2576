"""Finds the packages: `kvd` with its subpackages, and `kvd_cli`, which lies in the folder `cli`."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["kvd", "kvd.*"]), "kvd_cli"],
    package_data={"kvd.systemd": ["kvd.socket", "kvd.service"], "kvd.recall": ["table.npz"], "kvd.training": ["*.txt"]},
)
