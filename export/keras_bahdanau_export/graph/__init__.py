"""ONNX graphs: conversion, recurrent operators, passes and reduced precision."""
